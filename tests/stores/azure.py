"""One request to azurite, signed with its well-known key (SharedKey): azure.py PORT container|put|remove KEY FILE."""

import base64
import email.utils
import hashlib
import hmac
import http.client
import sys
import urllib.parse

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

port, verb, key, file = sys.argv[1:]
body = open(file, "rb").read()
path = f"/{ACCOUNT}/bucket" + ("/" + urllib.parse.quote(key) if key else "")
method = {"container": "PUT", "put": "PUT", "remove": "DELETE"}[verb]
fields = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
if verb == "put":
    fields["x-ms-blob-type"] = "BlockBlob"
query = "?restype=container" if verb == "container" else ""
canonical = "".join(f"{name}:{fields[name]}\n" for name in sorted(fields))
resource = f"/{ACCOUNT}{path}" + ("\nrestype:container" if query else "")
size = str(len(body)) if body else ""
text = f"{method}\n\n\n{size}\n\n\n\n\n\n\n\n\n{canonical}{resource}"
signature = base64.b64encode(hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()).decode()
fields["Authorization"] = f"SharedKey {ACCOUNT}:{signature}"
connection = http.client.HTTPConnection("127.0.0.1", int(port))
connection.request(method, path + query, body or None, {**fields, "Content-Length": str(len(body))})
answer = connection.getresponse()
if answer.status not in (201, 202):
    sys.exit(f"{answer.status}: {answer.read()}")
