package pgroles

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"

	"golang.org/x/text/secure/precis"
)

// scramIterations is the default of PostgreSQL.
const scramIterations = 4096

// scramVerifier returns what PostgreSQL stores for a password. A statement with the password itself would be in the
// log of a server that logs statements.
func scramVerifier(password string) (string, error) {
	if password == "" {
		return "", errors.New("the password is empty")
	}
	// As the clients of the services do.
	if prepared, err := precis.OpaqueString.String(password); err == nil {
		password = prepared
	}
	salt := make([]byte, 16)
	_, _ = rand.Read(salt) // never fails
	salted, err := pbkdf2.Key(sha256.New, password, salt, scramIterations, sha256.Size)
	if err != nil {
		return "", fmt.Errorf("derive a key from the password: %w", err)
	}
	sign := func(text string) []byte {
		mac := hmac.New(sha256.New, salted)
		mac.Write([]byte(text))
		return mac.Sum(nil)
	}
	stored := sha256.Sum256(sign("Client Key"))
	encode := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$%d:%s$%s:%s", scramIterations, encode(salt), encode(stored[:]),
		encode(sign("Server Key"))), nil
}
