package objects

import (
	"context"
	"io"
	"iter"
	"time"

	"lockstep.internal/services/runners/objects/object"
)

// Info describes stored content.
type Info = object.Info

// Entry is an object in a list.
type Entry = object.Entry

// ReaderAt is an object that is read at any offset.
type ReaderAt = object.ReaderAt

// ContentError is the error of the reader that was stored.
type ContentError = object.ContentError

// MaxURLTime is the longest time that a URL is valid. It is a limit of S3.
const MaxURLTime = 7 * 24 * time.Hour

// Errors of a store, see package object.
var (
	ErrNotFound = object.ErrNotFound
	ErrTooLarge = object.ErrTooLarge
)

// ValidateKey checks a key: segments such as jobs/17/archive.zip of lower-case letters, digits, ".", "_" and "-". All
// methods return its error for a key that is not valid.
func ValidateKey(key string) error { return object.ValidateKey(key) }

// Store keeps objects. The package describes what it promises.
type Store interface {
	// Put stores at most limit bytes. It reads content to its end, with little memory.
	Put(ctx context.Context, key string, content io.Reader, limit int64) (Info, error)
	// Open returns the content and its size in bytes. The caller closes it. ctx must live until then.
	Open(ctx context.Context, key string) (io.ReadCloser, int64, error)
	// OpenAt is Open for reading at any offset. Each read may be a request to the store: read large pieces. Reads fail
	// with [ErrNotFound] after the object was deleted, or continue.
	OpenAt(ctx context.Context, key string) (ReaderAt, int64, error)
	// Delete removes an object. It returns nil if there is none.
	Delete(ctx context.Context, key string) error
	// List returns the objects that were stored before a time, in any order. It ends after the first error. Objects that
	// are stored or deleted meanwhile may be missing.
	List(ctx context.Context, before time.Time) iter.Seq2[Entry, error]
	// Sweep removes what interrupted Puts have left before a time, and returns how many they were. A time that is a day
	// ago spares the Puts of other processes.
	Sweep(ctx context.Context, before time.Time) (int, error)
	// URL returns an address where a client without credentials downloads the object as a file with this name, for at
	// most [MaxURLTime]. It is "" if the store has none: then the caller sends the content. It does not check that the
	// object exists.
	URL(ctx context.Context, key, filename string, ttl time.Duration) (string, error)
	// Check returns an error if the store cannot be used.
	Check(ctx context.Context) error
	// Close frees connections.
	Close() error
}
