package signing

import (
	"encoding/json"
	"net/http"

	"lockstep.internal/libs/cellmap"
	"lockstep.internal/libs/logkey"
)

// KeySetPath is the path of [Keyring.Handler].
const KeySetPath = "/.well-known/jwks.json"

// Addresses are where the cell is reached.
type Addresses struct {
	// URL is where routers reach the cell.
	URL string
	// RedirectURL is where runners reach the cell without a router; empty for never.
	RedirectURL string
}

// Entry returns the entry of the cell in the map of cells, for a [cellmap.Announcer].
func (k *Keyring) Entry(addresses Addresses) cellmap.Cell {
	return cellmap.Cell{
		Name: k.Cell, URL: addresses.URL, RedirectURL: addresses.RedirectURL, State: cellmap.Active, Keys: k.Keys(),
	}
}

// Handler serves the public keys as a JSON Web Key Set, without authentication. Clients may keep it for five minutes,
// half of the time that a new key waits before it signs.
func (k *Keyring) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := json.Marshal(k.Keys())
		if err != nil {
			k.Logger.ErrorContext(r.Context(), "encode the public keys failed", logkey.Error(err))
			http.Error(w, "the public keys cannot be encoded", http.StatusInternalServerError)
			return
		}
		header := w.Header()
		header.Set("Content-Type", "application/jwk-set+json")
		header.Set("Cache-Control", "public, max-age=300")
		header.Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write(append(body, '\n')) // a client that is gone needs no answer
	})
}
