import java.net.URI;
import java.net.http.*;

/** Sends a body to a URL twice by Java's HttpClient, which asks to upgrade to HTTP/2, and prints the answers. */
public class Ask {
    public static void main(String[] arguments) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        for (int turn = 0; turn < 2; turn++) {
            HttpRequest request = HttpRequest.newBuilder(URI.create(arguments[0]))
                .header("Authorization", "Bearer a secret").POST(HttpRequest.BodyPublishers.ofString(arguments[1])).build();
            HttpResponse<String> response = client.send(request, HttpResponse.BodyHandlers.ofString());
            System.out.println(response.statusCode() + " " + response.body());
        }
    }
}
