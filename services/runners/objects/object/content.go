package object

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
)

// Content reads at most a number of bytes and hashes them. It is not safe for concurrent use.
type Content struct {
	reader io.Reader
	ended  func() error
	limit  int64
	size   int64
	hash   hash.Hash
	err    error
}

// NewContent returns the content of reader. Reading fails when ctx is done, with [ErrTooLarge] after limit bytes, and
// with a [ContentError] when the reader fails.
func NewContent(ctx context.Context, reader io.Reader, limit int64) *Content {
	return &Content{reader: reader, ended: ctx.Err, limit: max(limit, 0), hash: sha256.New()}
}

// Read implements [io.Reader]. An error is permanent.
func (c *Content) Read(p []byte) (int, error) {
	if c.err != nil || len(p) == 0 {
		return 0, c.err
	}
	if c.err = c.ended(); c.err != nil {
		return 0, c.err
	}
	// One byte more than the limit shows that there is more.
	if left := c.limit - c.size; int64(len(p)) > left+1 {
		p = p[:left+1]
	}
	n, err := c.reader.Read(p)
	if int64(n) > c.limit-c.size {
		c.err = ErrTooLarge
		return 0, c.err
	}
	c.size += int64(n)
	c.hash.Write(p[:n])
	switch {
	case err == nil:
		return n, nil
	case err == io.EOF: // an error that wraps it ends content that is not complete
		c.err = io.EOF
	case c.ended() != nil:
		c.err = errors.Join(c.ended(), err)
	default:
		c.err = &ContentError{Err: err}
	}
	return n, c.err
}

// Err returns why the content ended before its end: nil at the end, and while more can be read.
func (c *Content) Err() error {
	if c.err == io.EOF { //nolint:errorlint // see Read
		return nil
	}
	return c.err
}

// Info describes what was read.
func (c *Content) Info() Info {
	return Info{Size: c.size, SHA256: hex.EncodeToString(c.hash.Sum(nil))}
}
