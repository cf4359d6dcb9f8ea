import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;

import static java.nio.charset.StandardCharsets.UTF_8;

/** A client of the Open Inference Protocol in Java, without packages: tensors as binary data over HTTP. */
public final class Client {
    /** An error that the server answered with. */
    static final class Refusal extends IOException {
        Refusal(int status, String body) {
            // The text in {"error":"…"}. Where you have a library for JSON, use that.
            super(status + ": " + body.replaceAll("(?s)^\\{\"error\":\"(.*)\"}$", "$1").replaceAll("\\\\(.)", "$1"));
        }
    }

    private static final String LENGTH = "Inference-Header-Content-Length";

    /** Keeps connections open, for all threads: make one and share it. */
    private final HttpClient http = HttpClient.newBuilder()
            .version(HttpClient.Version.HTTP_1_1) // else a request asks for an upgrade to HTTP/2
            .connectTimeout(Duration.ofSeconds(2))
            .build();
    private final String address;

    Client(String address) {
        this.address = address;
    }

    /**
     * Runs a model. The data of the inputs follow the JSON, in its order. Returns the data of one output; several lie
     * one behind the other, and the answer's JSON has the size of each.
     */
    ByteBuffer infer(String model, String request, byte[] inputs) throws IOException, InterruptedException {
        byte[] head = request.getBytes(UTF_8);
        HttpRequest message = HttpRequest.newBuilder(URI.create("http://" + address + "/v2/models/" + model + "/infer"))
                .timeout(Duration.ofSeconds(10)) // then the connection closes, and the server drops what still waits
                .header(LENGTH, String.valueOf(head.length))
                .POST(BodyPublishers.concat(BodyPublishers.ofByteArray(head), BodyPublishers.ofByteArray(inputs)))
                .build();
        for (int attempt = 1; ; attempt++) {
            // After an IOException the model may have run: ask again only where that does no harm.
            HttpResponse<byte[]> reply = http.send(message, BodyHandlers.ofByteArray());
            if (reply.statusCode() == 200) {
                int size = (int) reply.headers().firstValueAsLong(LENGTH).orElseThrow();
                return ByteBuffer.wrap(reply.body()).position(size).slice().order(ByteOrder.LITTLE_ENDIAN);
            }
            // 503 (busy) and 429 (over the rate of a key) say when to come again. Other errors are final.
            var wait = reply.headers().firstValueAsLong("Retry-After");
            if (wait.isEmpty() || attempt == 3) {
                throw new Refusal(reply.statusCode(), new String(reply.body(), UTF_8));
            }
            Thread.sleep(Duration.ofSeconds(wait.getAsLong()).toMillis());
        }
    }

    public static void main(String[] args) throws Exception {
        // The JVM keeps idle connections for 20 minutes (from JDK 20 on 30 s); the server closes them after 75 s.
        System.setProperty("jdk.httpclient.keepalive.timeout", "60");
        Path source = Path.of(Client.class.getProtectionDomain().getCodeSource().getLocation().toURI());
        byte[] pixels = Files.readAllBytes(source.resolve("../../../models/digits/raw.bin").normalize());
        Client client = new Client(args.length > 0 ? args[0] : "localhost:8000");
        String request = """
            {"inputs": [{"name": "pixels", "datatype": "FP32", "shape": [1, 64],
                         "parameters": {"binary_data_size": 256}}],
             "outputs": [{"name": "probabilities", "parameters": {"binary_data": true%s}}]}""";

        ByteBuffer data = client.infer("digits", request.formatted(", \"classification\": 3"), pixels);
        byte[] text = new byte[data.getInt()]; // BYTES: before each text its length
        data.get(text);
        String[] best = new String(text, UTF_8).split(":", 3);
        System.out.println(best[2] + " " + best[0]);

        FloatBuffer values = client.infer("digits", request.formatted(""), pixels).asFloatBuffer();
        int largest = 0;
        for (int i = 0; i < values.limit(); i++) {
            if (values.get(i) > values.get(largest)) {
                largest = i;
            }
        }
        System.out.printf("probabilities: %d values, the largest is %d%n", values.limit(), largest);
        try {
            client.infer("nope", request.formatted(""), pixels);
        } catch (Refusal refusal) {
            System.out.println(refusal.getMessage());
        }
    }
}
