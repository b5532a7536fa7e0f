"""The package is called idiolect; what it holds for apps is device_sdk."""

raise ImportError("the package idiolect is imported as device_sdk: from device_sdk import Device")
