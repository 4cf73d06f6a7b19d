package seal

import (
	"errors"
	"fmt"

	"github.com/nats-io/nkeys"
)

var (
	// ErrInvalidKey is wrapped by errors about malformed keys. They never quote the key.
	ErrInvalidKey = errors.New("invalid X25519 nkey")
	// ErrNotOpened is wrapped if the box was modified, or has another recipient or sender.
	ErrNotOpened = errors.New("sealed box cannot be opened")
)

// Key is a private key. It prints as its public one.
type Key struct {
	pair   nkeys.KeyPair
	public string
}

// GenerateKey makes a new key.
func GenerateKey() (Key, error) {
	pair, err := nkeys.CreateCurveKeys()
	if err != nil {
		return Key{}, fmt.Errorf("generate key: %w", err)
	}

	return newKey(pair)
}

// ParseKey reads a seed ("SX…").
func ParseKey(seed string) (Key, error) {
	pair, err := nkeys.FromCurveSeed([]byte(seed))
	if err != nil {
		return Key{}, fmt.Errorf("%w: not a seed of the form SX…", ErrInvalidKey)
	}

	return newKey(pair)
}

func newKey(pair nkeys.KeyPair) (Key, error) {
	public, err := pair.PublicKey()
	if err != nil {
		return Key{}, fmt.Errorf("%w: %w", ErrInvalidKey, err)
	}

	return Key{pair: pair, public: public}, nil
}

// Public returns the public key. It names recipients and verifies senders.
func (k Key) Public() string { return k.public }

// Seed is the private key in the form that [ParseKey] reads.
func (k Key) Seed() (Value, error) {
	if k.pair == nil {
		return Value{}, fmt.Errorf("%w: the key is empty", ErrInvalidKey)
	}

	seed, err := k.pair.Seed()
	if err != nil {
		return Value{}, fmt.Errorf("%w: %w", ErrInvalidKey, err)
	}

	return NewValue(string(seed)), nil
}

// String is the public key.
func (k Key) String() string { return k.public }

// GoString keeps %#v from printing the private key.
func (k Key) GoString() string { return k.public }

// Seal encrypts the plaintext so that only the recipient can open it and knows that the sender sealed it. Sealing
// the same plaintext twice gives different boxes. A box is 44 bytes longer than the plaintext.
func Seal(plaintext []byte, recipientPublic string, sender Key) ([]byte, error) {
	if err := checkParties(recipientPublic, sender); err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}

	box, err := sender.pair.Seal(plaintext, recipientPublic)
	if err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}

	return box, nil
}

// Open decrypts what the sender sealed for the recipient.
func Open(box []byte, senderPublic string, recipient Key) ([]byte, error) {
	if err := checkParties(senderPublic, recipient); err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}

	plaintext, err := recipient.pair.Open(box, senderPublic)
	if err != nil {
		return nil, fmt.Errorf("%w: it was changed, is for another key, or not from %s", ErrNotOpened, senderPublic)
	}

	return plaintext, nil
}

func checkParties(public string, own Key) error {
	if own.pair == nil {
		return fmt.Errorf("%w: the private key is empty", ErrInvalidKey)
	}

	if !nkeys.IsValidPublicCurveKey(public) {
		return fmt.Errorf("%w: the public key is not of the form X…", ErrInvalidKey)
	}

	return nil
}
