package object

import (
	"io"
	"time"
)

// Info describes stored content.
type Info struct {
	// Size in bytes.
	Size int64
	// SHA256 of the content, in hexadecimal.
	SHA256 string
}

// Entry is an object in a list.
type Entry struct {
	Key string
	// Size in bytes.
	Size int64
	// Modified is when the object was stored, by the clock of the store.
	Modified time.Time
}

// ReaderAt is an object that is read at any offset.
type ReaderAt interface {
	io.ReaderAt
	io.Closer
}
