"""Put the example's documents and its input where a pool reads them:

    python hack/demo/upload.py s3://decurion/filings

Address, region and keys of the store are those of the environment (AWS_ENDPOINT_URL_S3, AWS_ACCESS_KEY_ID, …).
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from inputs import documents, graph_input

from decurion_crds.errors import DecurionError
from decurion_ledger import open_store


async def upload(uri: str, count: int | None) -> None:
    store = open_store(uri)
    try:
        await store.put("documents.jsonl", documents(count))
        await store.put("input.json", graph_input(f"{uri}/documents.jsonl"))
    finally:
        await store.aclose()


def main() -> None:
    parser = argparse.ArgumentParser(description="Put the example's documents and input where a pool reads them.")
    parser.add_argument("uri", help="place, such as s3://decurion/filings; the bucket must exist")
    parser.add_argument("--documents", type=int, metavar="N", help="only the first N documents")
    options = parser.parse_args()
    uri = options.uri.rstrip("/")
    try:
        asyncio.run(upload(uri, options.documents))
    except DecurionError as error:
        sys.exit(f"upload.py: {error}")
    print(f"{uri}/input.json")


if __name__ == "__main__":
    main()
