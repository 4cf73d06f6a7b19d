package wire

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// WriteJSON writes an answer. Runners refuse answers of another media type. Answers hold tokens, so nobody may store
// them.
func WriteJSON(w http.ResponseWriter, status int, body any) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	header := w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	if _, err := w.Write(append(raw, '\n')); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}
