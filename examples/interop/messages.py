"""The message classes of prices.proto, compiled where they are needed; a project of yours has its own prices_pb2."""

from typing import Any

import grpc

FILE = "examples/interop/prices.proto"

messages: Any = grpc.protos(FILE)
Price = messages.Price
PriceRequest = messages.PriceRequest
