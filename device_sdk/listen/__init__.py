"""One local server for the clients that people already have, over the devices of a household.

    GET  /                              the page: speak, correct, see what was learned, agree, forget
    WS   /v1/listen                     audio in; partials, results with ids, n-best and parts out
    POST /v1/audio/transcriptions       OpenAI's file API; GET /v1/models: a model a person
    POST /v1/feedback                   what became of a result: text, accepted, cancelled or slots
    GET, POST, DELETE /v1/me/...        vocabulary, consent, what was learned, what would be sent, forget
    Wyoming over tcp, unix or stdio     Home Assistant's protocol (:mod:`device_sdk.listen.wyoming`)

Everything stays on this machine. Needs the extra ``idiolect[listen]``."""
