"""The scripted tunnel for tests; it is part of the product, whose demo uses it too."""

from chappie_bridge.demo.tunnel import ACTIVE, QUEUED, REQUEST_ID, Statistics, Tunnel

__all__ = ["ACTIVE", "QUEUED", "REQUEST_ID", "Statistics", "Tunnel"]
