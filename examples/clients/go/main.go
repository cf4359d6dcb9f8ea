// A client of the Open Inference Protocol in Go, without packages: tensors as binary data over HTTP.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

type object = map[string]any

// The client keeps connections open: share one among all goroutines.
var client = http.Client{Transport: &http.Transport{
	MaxIdleConnsPerHost: 64,               // as many as requests at once; Go's default is 2
	IdleConnTimeout:     60 * time.Second, // less than the server's --http-idle-timeout of 75 s
	DisableCompression:  true,             // else Go asks for gzip, which rarely pays for tensors
}}

// infer runs a model. The data of the inputs follow the JSON, in its order. It returns the data of one output; several
// lie one behind the other, and the answer's JSON has the size of each. When ctx ends, the connection is closed, and
// the server drops the request if it still waits.
func infer(ctx context.Context, url string, request object, inputs ...[]byte) ([]byte, error) {
	head, _ := json.Marshal(request)
	body := append(head, bytes.Join(inputs, nil)...)
	for attempt := 1; ; attempt++ {
		message, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		message.Header.Set("Inference-Header-Content-Length", strconv.Itoa(len(head)))
		reply, err := client.Do(message)
		if err != nil {
			return nil, err // the model may have run: ask again only where that does no harm
		}
		answer, err := io.ReadAll(reply.Body) // to the end, or the connection is not used again
		reply.Body.Close()
		if err != nil {
			return nil, err
		}
		if reply.StatusCode == http.StatusOK {
			size, err := strconv.Atoi(reply.Header.Get("Inference-Header-Content-Length"))
			return answer[size:], err
		}
		// 503 (busy) and 429 (over the rate of a key) say when to come again. Other errors are final.
		wait, err := strconv.Atoi(reply.Header.Get("Retry-After"))
		if err != nil || attempt == 3 {
			var refusal struct{ Error string }
			json.Unmarshal(answer, &refusal)
			return nil, fmt.Errorf("%d: %s", reply.StatusCode, refusal.Error)
		}
		time.Sleep(time.Duration(wait) * time.Second)
	}
}

func main() {
	url := "http://" + append(os.Args[1:], "localhost:8000")[0] + "/v2/models/"
	_, source, _, _ := runtime.Caller(0)
	pixels, err := os.ReadFile(filepath.Join(filepath.Dir(source), "../../models/digits/raw.bin"))
	check(err)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	scan := object{"name": "pixels", "datatype": "FP32", "shape": []int{1, 64}}
	scan["parameters"] = object{"binary_data_size": len(pixels)}
	wanted := object{"name": "probabilities", "parameters": object{"binary_data": true, "classification": 3}}
	data, err := infer(ctx, url+"digits/infer", object{"inputs": []object{scan}, "outputs": []object{wanted}}, pixels)
	check(err)
	size := binary.LittleEndian.Uint32(data) // BYTES: before each text its length
	class := strings.SplitN(string(data[4:4+size]), ":", 3)
	fmt.Println(class[2], class[0])
	wanted["parameters"] = object{"binary_data": true}
	data, err = infer(ctx, url+"digits/infer", object{"inputs": []object{scan}, "outputs": []object{wanted}}, pixels)
	check(err)
	values, largest := make([]float32, len(data)/4), 0
	check(binary.Read(bytes.NewReader(data), binary.LittleEndian, values))
	for i := range values {
		if values[i] > values[largest] {
			largest = i
		}
	}
	fmt.Printf("probabilities: %d values, the largest is %d\n", len(values), largest)
	_, err = infer(ctx, url+"nope/infer", object{"inputs": []object{scan}}, pixels)
	fmt.Println(err)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
