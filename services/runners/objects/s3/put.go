package s3

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/minio/minio-go/v7"

	"lockstep.internal/services/runners/objects/object"
)

const (
	// partSize is the size of all parts but the last. S3 wants at least 5 MiB.
	partSize = 8 << 20
	// smallSize is the size of the buffer for content that is not longer.
	smallSize = 256 << 10
	// maxSize is the size of the largest object: S3 allows 10,000 parts.
	maxSize = 10_000 * partSize
	// abortTimeout bounds the end of an upload whose caller is gone.
	abortTimeout = 15 * time.Second
)

// Put implements objects.Store. No object is larger than 78 GiB.
func (s *Store) Put(ctx context.Context, key string, reader io.Reader, limit int64) (object.Info, error) {
	if err := object.ValidateKey(key); err != nil {
		return object.Info{}, err
	}
	content := object.NewContent(ctx, reader, min(limit, maxSize))
	err := s.put(ctx, s.prefix+key, content)
	switch {
	case content.Err() != nil:
		return object.Info{}, content.Err()
	case err != nil:
		return object.Info{}, s.failure(ctx, err, "store", key)
	}
	return content.Info(), nil
}

// put sends the content. Its first part shows whether it is the only one. Each part is signed with its hash, not in
// chunks: the hash is known, and some stores do not support chunks.
func (s *Store) put(ctx context.Context, name string, content *object.Content) error {
	var buffer bytes.Buffer
	last, err := readPart(&buffer, content)
	if err != nil {
		return err
	}
	if last {
		part := buffer.Bytes()
		_, err := s.client.PutObject(ctx, s.bucket, name, bytes.NewReader(part), int64(len(part)), "", digest(part),
			minio.PutObjectOptions{DisableContentSha256: true})
		return err //nolint:wrapcheck // the caller wraps it
	}
	upload, err := s.client.NewMultipartUpload(ctx, s.bucket, name, minio.PutObjectOptions{})
	if err != nil {
		return err //nolint:wrapcheck // the caller wraps it
	}
	if err := s.putParts(ctx, name, upload, &buffer, content); err != nil {
		return s.abort(ctx, name, upload, err)
	}
	return nil
}

// putParts sends the part in the buffer and those that follow, and completes the upload.
func (s *Store) putParts(
	ctx context.Context, name, upload string, buffer *bytes.Buffer, content *object.Content,
) error {
	var parts []minio.CompletePart
	for last := false; ; {
		part := buffer.Bytes()
		number := len(parts) + 1
		sent, err := s.client.PutObjectPart(ctx, s.bucket, name, upload, number, bytes.NewReader(part),
			int64(len(part)), minio.PutObjectPartOptions{Sha256Hex: digest(part), DisableContentSha256: true})
		if err != nil {
			return fmt.Errorf("part %d: %w", number, err)
		}
		parts = append(parts, minio.CompletePart{PartNumber: number, ETag: sent.ETag})
		if last {
			break
		}
		if last, err = readPart(buffer, content); err != nil {
			return err
		}
		if buffer.Len() == 0 {
			break
		}
	}
	_, err := s.client.CompleteMultipartUpload(ctx, s.bucket, name, upload, parts, minio.PutObjectOptions{})
	return err //nolint:wrapcheck // the caller wraps it
}

// abort frees the parts of an upload that has failed, and returns err.
func (s *Store) abort(ctx context.Context, name, upload string, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTimeout)
	defer cancel()
	aborted := s.client.AbortMultipartUpload(ctx, s.bucket, name, upload)
	if aborted != nil && minio.ToErrorResponse(aborted).Code != minio.NoSuchUpload {
		return errors.Join(err, fmt.Errorf("abort the upload: %w", aborted))
	}
	return err
}

// readPart replaces the content of the buffer by the next part. last: the content is at its end. The buffer grows to
// the size of a part only if it must, because most content is small.
func readPart(buffer *bytes.Buffer, content *object.Content) (last bool, err error) {
	buffer.Reset()
	for _, size := range []int{smallSize, partSize} {
		buffer.Grow(size + bytes.MinRead - buffer.Len())
		_, err := io.CopyN(buffer, content, int64(size-buffer.Len()))
		if errors.Is(err, io.EOF) && content.Err() == nil {
			return true, nil
		}
		if err != nil {
			return false, err //nolint:wrapcheck // the caller knows the errors of content
		}
	}
	return false, nil
}

func digest(part []byte) string {
	sum := sha256.Sum256(part)
	return hex.EncodeToString(sum[:])
}
