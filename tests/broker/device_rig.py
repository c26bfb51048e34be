"""Paired devices over a store, for tests."""

from chappie_broker.codes import OneTimeCodes
from chappie_broker.devices import Devices, token_hash
from chappie_broker.store.port import Store
from chappie_broker.store.rows import Device

from chappie_bridge.wire.ids import Mint
from tests.peer.link_rig import LOCAL


async def devices(store: Store, codes: OneTimeCodes | None = None) -> Devices:
    local = Device(LOCAL, "here", token_hash("token-of-here"), 0.0, 0.0)
    return await Devices.open(
        store, codes or OneTimeCodes(lambda: 0.0), local=local, now=lambda: 100.0, mint=Mint()
    )
