// A client of the Open Inference Protocol in C++17 with libcurl: tensors as binary data over HTTP.
#include <curl/curl.h>
#include <strings.h>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

constexpr char LENGTH[] = "Inference-Header-Content-Length: ";
constexpr size_t LENGTH_SIZE = sizeof LENGTH - 1;

// One connection, kept open, for one thread at a time: give each thread a client of its own.
class Client {
public:
  explicit Client(const std::string &address) : models_("http://" + address + "/v2/models/") {
    set(CURLOPT_CONNECTTIMEOUT_MS, 2'000L);
    set(CURLOPT_TIMEOUT_MS, 10'000L); // then the connection is closed, and the server drops requests that still wait
    set(CURLOPT_MAXAGE_CONN, 60L);    // less than the server's --http-idle-timeout of 75 s
    set(CURLOPT_NOSIGNAL, 1L);        // for programs with threads
    set(CURLOPT_WRITEFUNCTION, +[](char *data, size_t, size_t size, void *answer) {
      return static_cast<std::string *>(answer)->append(data, size), size;
    });
    set(CURLOPT_HEADERFUNCTION, +[](char *line, size_t, size_t size, void *json_size) {
      if (size > LENGTH_SIZE && strncasecmp(line, LENGTH, LENGTH_SIZE) == 0)
        *static_cast<size_t *>(json_size) = std::strtoul(line + LENGTH_SIZE, nullptr, 10);
      return size;
    });
  }

  // Runs a model. The data of the inputs follow the JSON, in its order. Returns the data of one output; several lie one
  // behind the other, and the answer's JSON has the size of each.
  std::string infer(const std::string &model, const std::string &json, const std::string &inputs) {
    const std::string url = models_ + model + "/infer", length = LENGTH + std::to_string(json.size());
    curl_slist *fields = curl_slist_append(nullptr, length.c_str());
    fields = curl_slist_append(fields, "Expect:"); // else libcurl first asks whether it may send a large body
    const std::unique_ptr<curl_slist, void (*)(curl_slist *)> owner(fields, curl_slist_free_all);
    set(CURLOPT_URL, url.c_str());
    set(CURLOPT_HTTPHEADER, fields);
    const std::string body = json + inputs;
    set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
    set(CURLOPT_POSTFIELDS, body.data());
    for (int attempt = 1;; ++attempt) {
      std::string answer;
      size_t json_size = 0;
      set(CURLOPT_WRITEDATA, &answer);
      set(CURLOPT_HEADERDATA, &json_size);
      const CURLcode code = curl_easy_perform(curl_.get());
      // The model may have run: ask again only where that does no harm.
      if (code != CURLE_OK) throw std::runtime_error(curl_easy_strerror(code));
      long status = 0;
      curl_off_t wait = 0;
      curl_easy_getinfo(curl_.get(), CURLINFO_RESPONSE_CODE, &status);
      curl_easy_getinfo(curl_.get(), CURLINFO_RETRY_AFTER, &wait);
      if (status == 200) return answer.substr(json_size);
      // 503 (busy) and 429 (over the rate of a key) say when to come again. Other errors are final: {"error":"…"}.
      if (wait == 0 || attempt == 3)
        throw std::runtime_error(std::to_string(status) + ": " + answer.substr(0, answer.rfind('"')).erase(0, 10));
      std::this_thread::sleep_for(std::chrono::seconds(wait));
    }
  }

private:
  template <typename Value> void set(CURLoption option, Value value) { curl_easy_setopt(curl_.get(), option, value); }
  std::string models_;
  std::unique_ptr<CURL, void (*)(CURL *)> curl_{curl_easy_init(), curl_easy_cleanup};
};

int main(int count, char **args) {
  const auto folder = std::filesystem::path(__FILE__).parent_path();
  std::string pixels(64 * sizeof(float), '\0');
  std::ifstream(folder / "../../models/digits/raw.bin", std::ios::binary).read(pixels.data(), pixels.size());
  Client client(count > 1 ? args[1] : "localhost:8000");
  const std::string request = // the inputs, and the beginning of the outputs
      R"({"inputs":[{"name":"pixels","datatype":"FP32","shape":[1,64],"parameters":{"binary_data_size":256}}],)"
      R"("outputs":[{"name":"probabilities","parameters":{"binary_data":true)";
  std::string data = client.infer("digits", request + R"(,"classification":3}}]})", pixels);
  uint32_t size = 0; // BYTES: before each text its length
  std::memcpy(&size, data.data(), sizeof size);
  const std::string best = data.substr(sizeof size, size); // score:index:label
  std::cout << best.substr(best.find(':', best.find(':') + 1) + 1) << ' ' << best.substr(0, best.find(':')) << '\n';
  data = client.infer("digits", request + "}}]}", pixels);
  std::vector<float> values(data.size() / sizeof(float));
  std::memcpy(values.data(), data.data(), data.size());
  const auto largest = std::max_element(values.begin(), values.end()) - values.begin();
  std::cout << "probabilities: " << values.size() << " values, the largest is " << largest << '\n';
  try {
    client.infer("nope", request + "}}]}", pixels);
  } catch (const std::exception &refusal) {
    std::cout << refusal.what() << '\n';
  }
}
