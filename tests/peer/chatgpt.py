"""The scripted ChatGPT for tests; it is part of the product, whose demo uses it too."""

from chappie_bridge.demo.chatgpt import VERSIONS, Answer, Chat, ChatGPT, LostAnswer, Refused, Request

__all__ = ["VERSIONS", "Answer", "Chat", "ChatGPT", "LostAnswer", "Refused", "Request"]
