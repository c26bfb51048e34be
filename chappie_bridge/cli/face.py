"""The face's settings, from ours.  Both ways in need them: HTTP and stdio."""

from importlib.metadata import version

from chappie_bridge.config import Settings
from chappie_bridge.faces.chatgpt.admission import Credential
from chappie_bridge.faces.chatgpt.server import FaceSettings

VERSION = version("chappie-bridge")

PRINCIPAL = "owner"


def face_settings(settings: Settings, secret: str | None) -> FaceSettings:
    """`secret` None: whoever reaches the face is the owner."""
    return FaceSettings(
        version=VERSION,
        auth=settings.auth,
        credentials=(Credential(PRINCIPAL, secret),) if secret else (),
        public_url=settings.public_url,
        allowed_hosts=settings.allowed_hosts,
        allowed_origins=settings.allowed_origins,
        body_max=settings.body_max,
        wait=settings.wait,
        trim_tokens=settings.trim_tokens,
    )
