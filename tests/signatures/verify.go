// Verifies deliveries with the official Go library, and v1a, which it passes over, with the
// standard library's Ed25519; what was changed must fail.
package main

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"strings"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

type delivery struct {
	Headers map[string]string
	Body    []byte
	Keys    []struct{ Shared, Public string }
}

func verify(shared, public string, body []byte, headers http.Header) bool {
	if shared != "" {
		webhook, err := standardwebhooks.NewWebhook(shared)
		if err != nil {
			log.Fatal(err)
		}
		return webhook.Verify(body, headers) == nil
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(public, "whpk_"))
	if err != nil {
		log.Fatal(err)
	}
	signed := headers.Get("webhook-id") + "." + headers.Get("webhook-timestamp") + "." + string(body)
	for _, signature := range strings.Split(headers.Get("webhook-signature"), " ") {
		bytes, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(signature, "v1a,"))
		if err == nil && ed25519.Verify(key, []byte(signed), bytes) {
			return true
		}
	}
	return false
}

func main() {
	text, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	var deliveries []delivery
	if err := json.Unmarshal(text, &deliveries); err != nil {
		log.Fatal(err)
	}
	checks := 0
	for _, delivery := range deliveries {
		headers, another := http.Header{}, http.Header{}
		for name, value := range delivery.Headers {
			headers.Set(name, value)
			another.Set(name, value)
		}
		another.Set("webhook-id", "another")
		changed := append(append([]byte{}, delivery.Body...), ' ')
		for _, key := range delivery.Keys {
			if !verify(key.Shared, key.Public, delivery.Body, headers) {
				log.Fatalf("not verified: %v", delivery.Headers)
			}
			if verify(key.Shared, key.Public, changed, headers) ||
				verify(key.Shared, key.Public, delivery.Body, another) {
				log.Fatalf("what was changed is verified: %v", delivery.Headers)
			}
			checks += 2
		}
	}
	if checks == 0 {
		log.Fatal("nothing was verified")
	}
	fmt.Printf("Go: %d changed requests refused, the true ones verified\n", checks)
}
