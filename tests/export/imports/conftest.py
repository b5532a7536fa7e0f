from pathlib import Path

import pytest

from device_sdk.bundle import Bundle
from export.sherpa import export_sherpa
from server.lab.imports import Import, import_bundle
from tests.export.imports.folders import SENTENCES, zipformer_folder
from tests.speech import packaged


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of sherpa-onnx's layout: a drawn Zipformer, and the packaged LSTM as one of NeMo's."""
    root = tmp_path_factory.mktemp("sherpa")
    nemo = export_sherpa(packaged(), root / "nemo")
    (nemo / "text.txt").write_text(SENTENCES, "utf-8")
    return {"zipformer2": zipformer_folder(root / "zipformer2"), "nemo": nemo}


@pytest.fixture(scope="session")
def imported(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    """The bundles made of them."""
    root = tmp_path_factory.mktemp("imported")
    for family, folder in folders.items():
        import_bundle(Import(folder, root / family, (folder / "text.txt",)))
    return {family: Bundle.open(root / family) for family in folders}
