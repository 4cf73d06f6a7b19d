package s3

import (
	"context"
	"fmt"
	"io"

	"github.com/minio/minio-go/v7"

	"lockstep.internal/services/runners/objects/object"
)

// ranges reads an object with a request per call.
type ranges struct {
	get  func(options minio.GetObjectOptions) (io.ReadCloser, error)
	etag string
	size int64
}

// OpenAt implements objects.Store.
func (s *Store) OpenAt(ctx context.Context, key string) (object.ReaderAt, int64, error) {
	if err := object.ValidateKey(key); err != nil {
		return nil, 0, err
	}
	name := s.prefix + key
	info, err := s.client.StatObject(ctx, s.bucket, name, minio.StatObjectOptions{})
	if err != nil {
		return nil, 0, s.failure(ctx, err, "open", key)
	}
	get := func(options minio.GetObjectOptions) (io.ReadCloser, error) {
		content, _, _, err := s.client.GetObject(ctx, s.bucket, name, options)
		return content, s.failure(ctx, err, "read", key)
	}
	return &ranges{get: get, etag: info.ETag, size: info.Size}, info.Size, nil
}

// ReadAt implements [io.ReaderAt]. It fails if the object was replaced.
func (r *ranges) ReadAt(p []byte, offset int64) (int, error) {
	if offset < 0 {
		return 0, fmt.Errorf("read at offset %d: it is negative", offset)
	}
	want := min(int64(len(p)), r.size-offset)
	if want <= 0 {
		if len(p) == 0 {
			return 0, nil
		}
		return 0, io.EOF
	}
	var options minio.GetObjectOptions
	if err := options.SetRange(offset, offset+want-1); err != nil {
		return 0, fmt.Errorf("read at offset %d: %w", offset, err)
	}
	if err := options.SetMatchETag(r.etag); err != nil {
		return 0, fmt.Errorf("read at offset %d: %w", offset, err)
	}
	content, err := r.get(options)
	if err != nil {
		return 0, err
	}
	defer content.Close() //nolint:errcheck // only read
	n, err := io.ReadFull(content, p[:want])
	if err != nil {
		return n, fmt.Errorf("read at offset %d: %w", offset, err)
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// Close implements [io.Closer].
func (r *ranges) Close() error { return nil }
