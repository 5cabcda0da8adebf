"""The official OpenAI client over TLS with a certificate of its own, and over a Unix socket below a proxy's path.

    python listeners.py tls URL CA_FILE CERT_FILE KEY_FILE
    python listeners.py refresh URL CA_FILE CERT_FILE KEY_FILE NEW_CA_FILE NEW_KEY KEY NEW_CERT CERT
    python listeners.py unix PATH
"""

import os
import ssl
import sys
import time

import httpx
import openai


def chat(client):
    pieces = []
    for chunk in client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "The river"}], max_tokens=6, temperature=0, stream=True
    ):
        pieces += [choice.delta.content or "" for choice in chunk.choices]
    assert "".join(pieces), "an answer has text"


def with_certificate(ca, cert, key):
    context = ssl.create_default_context(cafile=ca)
    context.load_cert_chain(cert, key)
    return context


if sys.argv[1] == "tls":
    url, ca, cert, key = sys.argv[2:]
    trusting = ssl.create_default_context(cafile=ca)
    known = with_certificate(ca, cert, key)
    chat(openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0, http_client=httpx.Client(verify=known)))
    for context in (trusting, True):
        http = httpx.Client(verify=context)
        try:
            openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0, http_client=http).models.list()
        except openai.APIConnectionError:
            continue
        raise AssertionError("a client without a certificate, or one that does not know the authority, was served")
elif sys.argv[1] == "refresh":
    url, ca, cert, key, new_ca = sys.argv[2:7]
    # A connection that is idle for 5 seconds would be closed here.
    lasting = httpx.Limits(keepalive_expiry=None)
    with httpx.Client(verify=with_certificate(ca, cert, key), limits=lasting) as old:
        stream = old.get(f"{url}/health").extensions["network_stream"]
        # The key first: until the certificate follows the two do not fit, and the server keeps what it has.
        for new, path in (sys.argv[7:9], sys.argv[9:11]):
            os.replace(new, path)
        deadline = time.monotonic() + 60
        while True:
            try:
                httpx.Client(verify=with_certificate(new_ca, cert, key)).get(f"{url}/health").raise_for_status()
                break
            except httpx.ConnectError:
                assert time.monotonic() < deadline, "new connections get the new certificate"
                time.sleep(0.1)
        answer = old.get(f"{url}/v1/models")
        assert answer.status_code == 200
        assert answer.extensions["network_stream"] is stream, "the connection is the one of before"
else:
    http = httpx.Client(transport=httpx.HTTPTransport(uds=sys.argv[2]))
    chat(openai.OpenAI(base_url="http://any.name/llm/v1", api_key="x", max_retries=0, http_client=http))
print("agrees")
