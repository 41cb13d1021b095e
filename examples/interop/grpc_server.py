"""python -m examples.interop.grpc_server PORT: grpcio and nothing of ours; it knows prices.proto"""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

if len(sys.argv) != 2:
    sys.exit(__doc__)
protos, services = grpc.protos_and_services("examples/interop/prices.proto")


class PriceList(services.PricesServicer):  # type: ignore[name-defined, misc]
    def Get(self, request: Any, context: Any) -> Any:  # noqa: N802
        if request.sku != "tea":
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"only tea here, no {request.sku}")
        return protos.Price(sku=request.sku, cents=475)

    def Follow(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        for cents in (475, 470, 465):
            yield protos.Price(sku=request.sku, cents=cents)


server = grpc.server(ThreadPoolExecutor(4))
services.add_PricesServicer_to_server(PriceList(), server)
port = server.add_insecure_port(f"127.0.0.1:{sys.argv[1]}")
server.start()
print(f"shop.Prices at 127.0.0.1:{port}", flush=True)
server.wait_for_termination()
