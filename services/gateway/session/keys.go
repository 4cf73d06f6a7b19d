package session

import (
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/crypto/chacha20poly1305"
)

// maxSealed is the greatest length of a sealed value. Browsers keep cookies of up to 4096 bytes.
const maxSealed = 4000

// ErrNotSealed is returned for a value that none of the keys has sealed for this purpose.
var ErrNotSealed = errors.New("the value was not sealed for this purpose with these keys")

// Keys seal what a browser keeps: XChaCha20-Poly1305. The first one seals and all open, so that a new key can be added
// at the top while the values of the old one are in use.
type Keys struct{ ciphers []cipher.AEAD }

// GenerateKey returns a new key as a line of a file of keys.
func GenerateKey() string {
	key := make([]byte, chacha20poly1305.KeySize)
	_, _ = rand.Read(key) // it never fails
	return base64.StdEncoding.EncodeToString(key)
}

// ParseKeys reads a file of keys: one a line, the newest first. Empty lines and those that begin with # are ignored.
func ParseKeys(text string) (Keys, error) {
	var keys Keys
	for number, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, err := base64.StdEncoding.DecodeString(line)
		if err != nil || len(key) != chacha20poly1305.KeySize {
			return Keys{}, fmt.Errorf("line %d is not a key: want %d bytes in base64", number+1, chacha20poly1305.KeySize)
		}
		cipher, err := chacha20poly1305.NewX(key)
		if err != nil {
			return Keys{}, fmt.Errorf("line %d is not a key: %w", number+1, err)
		}
		keys.ciphers = append(keys.ciphers, cipher)
	}
	if len(keys.ciphers) == 0 {
		return Keys{}, errors.New("there is no key")
	}
	return keys, nil
}

// Seal encrypts a value that encodes as JSON. Only Open with the same purpose decrypts it; name the host in the purpose
// of what only this host may use.
func (k Keys) Seal(purpose string, value any) (string, error) {
	plain, err := json.Marshal(value)
	if err != nil {
		return "", fmt.Errorf("seal %s: %w", purpose, err)
	}
	first := k.ciphers[0]
	nonce := make([]byte, first.NonceSize(), first.NonceSize()+len(plain)+first.Overhead())
	_, _ = rand.Read(nonce) // it never fails
	text := base64.RawURLEncoding.EncodeToString(first.Seal(nonce, nonce, plain, []byte(purpose)))
	if len(text) > maxSealed {
		return "", fmt.Errorf("seal %s: the value has %d characters; at most %d are allowed", purpose, len(text), maxSealed)
	}
	return text, nil
}

// Open decrypts what Seal has returned. It does not look at times.
func (k Keys) Open(purpose, text string, value any) error {
	if len(text) > maxSealed {
		return ErrNotSealed
	}
	sealed, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(sealed) < chacha20poly1305.NonceSizeX {
		return ErrNotSealed
	}
	nonce, sealed := sealed[:chacha20poly1305.NonceSizeX], sealed[chacha20poly1305.NonceSizeX:]
	for _, c := range k.ciphers {
		if plain, err := c.Open(nil, nonce, sealed, []byte(purpose)); err == nil {
			if err := json.Unmarshal(plain, value); err != nil {
				return fmt.Errorf("open %s: %w", purpose, err)
			}
			return nil
		}
	}
	return ErrNotSealed
}
