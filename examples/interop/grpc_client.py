"""python -m examples.interop.grpc_client HOST:PORT: grpcio and nothing of ours; it knows prices.proto"""

import sys

import grpc

if len(sys.argv) != 2:
    sys.exit(__doc__)
protos, services = grpc.protos_and_services("examples/interop/prices.proto")

with grpc.insecure_channel(sys.argv[1]) as channel:
    prices = services.PricesStub(channel)
    answer = prices.Get(protos.PriceRequest(sku="tea"), timeout=10, wait_for_ready=True)
    print(f"{answer.sku} costs {answer.cents} cents")
    print("next days:", [answer.cents for answer in prices.Follow(protos.PriceRequest(sku="tea"), timeout=10)])
    try:
        prices.Get(protos.PriceRequest(sku="milk"), timeout=10)
    except grpc.RpcError as error:
        print(f"{error.code().name}: {error.details()}")
