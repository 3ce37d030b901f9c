"""Where things are when nobody says otherwise."""

LEDGER = "./.decurion/ledger"
