"""Envelopes beside the specification's example and beside what another implementation signed."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256

from audit.dsse import Envelope, Signature, pae, read, strict_json, to_json
from tests.audit.sealing import KEY, OTHER, PUBLIC

# securesystemslib 1.6.0, CryptoSigner and dsse.Envelope, with the key of bytes 0 to 31
SIGNED_BY_OTHERS = {
    "payload": "eyJfdHlwZSI6Imh0dHBzOi8vaW4tdG90by5pby9TdGF0ZW1lbnQvdjEiLCJzdWJqZWN0Ijpb"
    "eyJuYW1lIjoi"
    "YS50eHQiLCJkaWdlc3QiOnsic2hhMjU2IjoiNTg5MWI1YjUyMmQ1ZGYwODZkMGZmMGIxMTBmYmQ5ZDIxYmI0ZmM3MTYz"
    "YWYzNGQwODI4NmEyZTg0NmY2YmUwMyJ9fV0sInByZWRpY2F0ZVR5cGUiOiJ1cm46ZHBhc3NheTpzZWFsOjEiLCJwcmVk"
    "aWNhdGUiOnsiYXVkaXQiOm51bGx9fQ==",
    "payloadType": "application/vnd.in-toto+json",
    "signatures": [
        {
            "keyid": "03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8",
            "sig": "tb//+HW1LHpoTjsZz4JryEMPTCPmzzESVevRLD9/FQjIzDhbucws7C0JpmlQtKzu6crmHTuv2grP"
            "IX1vXwQCBg==",
        }
    ],
}


def test_the_specifications_example() -> None:
    # secure-systems-lab/dsse, protocol.md 1.0.0, "Test Vectors": ECDSA over P-256
    message = pae("http://example.com/HelloWorld", b"hello world")
    assert message == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    raw = base64.b64decode(
        "A3JqsQGtVsJ2O2xqrI5IcnXip5GToJ3F+FnZ+O88SjtR6rDAajabZKciJTfUiHqJPcIAriEGAHTVeCUjW2JIZA=="
    )
    numbers = ec.EllipticCurvePublicNumbers(
        46950820868899156662930047687818585632848591499744589407958293238635476079160,
        5640078356564379163099075877009565129882514886557779369047442380624545832820,
        ec.SECP256R1(),
    )
    r, s = int.from_bytes(raw[:32]), int.from_bytes(raw[32:])
    numbers.public_key().verify(encode_dss_signature(r, s), message, ec.ECDSA(SHA256()))


def test_what_another_implementation_signed_is_what_we_sign() -> None:
    theirs = read(json.dumps(SIGNED_BY_OTHERS).encode())
    assert theirs.signature_by(PUBLIC) is theirs.signatures[0]
    ours = KEY.sign(pae(theirs.payload_type, theirs.payload))
    assert ours == theirs.signatures[0].value  # Ed25519 is deterministic
    assert json.loads(to_json(theirs)) == SIGNED_BY_OTHERS


def test_lengths_count_bytes_and_keep_parts_apart() -> None:
    assert pae("é", "ü".encode()) == b"DSSEv1 2 \xc3\xa9 2 \xc3\xbc"
    assert pae("", b"") == b"DSSEv1 0  0 "
    assert pae("a", b"b c") != pae("a b", b"c")


def test_one_of_several_signatures_is_enough_and_ids_decide_nothing() -> None:
    payload = b"\xff\xfe{}"
    message = pae("t", payload)
    both = Envelope(
        "t",
        payload,
        (
            Signature(PUBLIC.hex(), OTHER.sign(message)),
            Signature("anything", KEY.sign(message)),
            Signature("", b"short"),
        ),
    )
    again = read(to_json(both).encode())
    assert again == both
    assert again.signature_by(PUBLIC) is again.signatures[1]
    assert again.signature_by(bytes(32)) is None
    assert again.signature_by(b"no key") is None


def _envelope(**changed: Any) -> bytes:
    return json.dumps(SIGNED_BY_OTHERS | changed).encode()


def _sig(sig: Any) -> list[dict[str, Any]]:
    return [{"keyid": "", "sig": sig}]


def test_both_alphabets_are_read() -> None:
    # 0xfb 0xff: "+/8=" in the standard alphabet, "-_8=" in that of URLs
    for text in ("+/8=", "-_8="):
        assert read(_envelope(payload=text)).payload == b"\xfb\xff"
    assert read(_envelope(payload="")).payload == b""
    assert read(_envelope(more={"ignored": 1})).payload_type == "application/vnd.in-toto+json"


@pytest.mark.parametrize(
    "text",
    [
        "+_8=",  # of both alphabets
        "+/8",  # without padding
        "+/9=",  # bits behind the end
        "+/8= ",
        "+/8=\n",
        "+/8==",
        "=",
        "+/8=AAAA",
        "é",
        7,
        None,
    ],
)
def test_base64_of_other_kinds_is_refused(text: Any) -> None:
    for bad in (_envelope(payload=text), _envelope(signatures=_sig(text))):
        with pytest.raises(ValueError, match=r"base64|ASCII"):
            read(bad)


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"null",
        b"[]",
        b"\xff",
        b"\xef\xbb\xbf{}",
        b"[" * 100_000,
        _envelope(signatures=[]),
        _envelope(signatures=_sig("AAAA") * 101),
        _envelope(signatures={}),
        _envelope(signatures=["x"]),
        _envelope(signatures=[{"keyid": 3, "sig": "AAAA"}]),
        _envelope(payloadType=None),
        _envelope(payloadType="é"),
        b'{"payloadType":"a","payloadType":"b","payload":"","signatures":[{"sig":""}]}',
        b'{"payloadType":"a","payload":"","signatures":[{"sig":"","sig":"AAAA"}]}',
        b'{"payloadType":"a","payload":"","signatures":[{"sig":"","n":NaN}]}',
    ],
)
def test_what_is_no_envelope_is_refused(bad: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read(bad)


def test_strict_json_reads_what_everybody_reads_alike() -> None:
    assert strict_json(b'{"a": [1, 2.5, "\\u00e9"], "b": {"a": null}}') == {
        "a": [1, 2.5, "é"],
        "b": {"a": None},
    }
    with pytest.raises(ValueError, match="'a' twice"):
        strict_json(b'{"b": {"a": 1, "\\u0061": 2}}')
