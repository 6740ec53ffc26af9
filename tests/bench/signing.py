"""Presigned SigV4 URLs, made quickly: one signing key per access key and day."""

import datetime
import hashlib
import hmac
from urllib.parse import quote

DAYS = 3
EXPIRES_SECONDS = 7 * 24 * 3600


def _hmac(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


class Signer:
    """Signs for one access key at one moment."""

    def __init__(self, access_key, secret, when, region="us-east-1"):
        self.stamp = when.strftime("%Y%m%dT%H%M%SZ")
        day = self.stamp[:8]
        self.scope = f"{day}/{region}/s3/aws4_request"
        key = _hmac(("AWS4" + secret).encode(), day)
        for part in (region, "s3", "aws4_request"):
            key = _hmac(key, part)
        self.key = key
        self.credential = quote(f"{access_key}/{self.scope}", safe="")

    def presign(self, method, host, path, query=(), headers=None):
        """The target of a request: path and query with a signature that covers the host and these headers,
        whose names are in lower case."""
        signed = sorted({"host": host, **(headers or {})}.items())
        names = ";".join(name for name, _ in signed)
        path = quote(path, safe="/-_.~")
        pairs = [(quote(n, safe="-_.~"), quote(v, safe="-_.~")) for n, v in query]
        pairs += [("X-Amz-Algorithm", "AWS4-HMAC-SHA256"), ("X-Amz-Credential", self.credential),
                  ("X-Amz-Date", self.stamp), ("X-Amz-Expires", str(EXPIRES_SECONDS)),
                  ("X-Amz-SignedHeaders", quote(names, safe=""))]
        text = "&".join(f"{name}={value}" for name, value in sorted(pairs))
        lines = "".join(f"{name}:{value}\n" for name, value in signed)
        canonical = f"{method}\n{path}\n{text}\n{lines}\n{names}\nUNSIGNED-PAYLOAD"
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        to_sign = f"AWS4-HMAC-SHA256\n{self.stamp}\n{self.scope}\n{digest}"
        signature = hmac.new(self.key, to_sign.encode(), hashlib.sha256).hexdigest()
        return f"{path}?{text}&X-Amz-Signature={signature}"


def signers(keys):
    """One signer for each access key on each of a few days."""
    now = datetime.datetime.now(datetime.timezone.utc)
    days = [now - datetime.timedelta(days=day) for day in range(DAYS)]
    return [Signer(key, secret, day) for key, secret in keys for day in days]
