package s3

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"lockstep.internal/libs/certpool"
	"lockstep.internal/services/runners/objects/object"
)

// attempts of a request. The caller of the service tries again, too, so they are few.
const attempts = 3

// Store keeps objects in a bucket.
type Store struct {
	client    *minio.Core
	transport *http.Transport
	bucket    string
	prefix    string // "", or with a slash at its end
	presign   bool
}

// New returns the store of a bucket. It does not connect.
func New(cfg Config) (*Store, error) {
	if problems := cfg.Problems(); len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	address, err := cfg.address()
	if err != nil {
		return nil, err
	}
	secure := address.Scheme == "https"
	transport, err := minio.DefaultTransport(secure)
	if err != nil {
		return nil, fmt.Errorf("make a transport: %w", err)
	}
	if secure {
		transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
		if cfg.CAFile != "" {
			if transport.TLSClientConfig.RootCAs, err = certpool.Load(cfg.CAFile); err != nil {
				return nil, fmt.Errorf("s3.ca_file: %w", err)
			}
		}
	}
	lookup := minio.BucketLookupDNS
	if cfg.PathStyle {
		lookup = minio.BucketLookupPath
	}
	client, err := minio.NewCore(address.Host, &minio.Options{
		Creds:  credentials.New(&files{access: cfg.AccessKeyFile, secret: cfg.SecretKeyFile, now: time.Now}),
		Secure: secure, Transport: transport, Region: cfg.Region, BucketLookup: lookup, MaxRetries: attempts,
	})
	if err != nil {
		return nil, fmt.Errorf("s3.endpoint: %w", err)
	}
	prefix := cfg.Prefix
	if prefix != "" {
		prefix += "/"
	}
	return &Store{client: client, transport: transport, bucket: cfg.Bucket, prefix: prefix, presign: cfg.Presign}, nil
}

// Open implements objects.Store.
func (s *Store) Open(ctx context.Context, key string) (io.ReadCloser, int64, error) {
	if err := object.ValidateKey(key); err != nil {
		return nil, 0, err
	}
	content, info, _, err := s.client.GetObject(ctx, s.bucket, s.prefix+key, minio.GetObjectOptions{})
	if err != nil {
		return nil, 0, s.failure(ctx, err, "open", key)
	}
	return content, info.Size, nil
}

// Delete implements objects.Store.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := object.ValidateKey(key); err != nil {
		return err
	}
	err := s.client.RemoveObject(ctx, s.bucket, s.prefix+key, minio.RemoveObjectOptions{})
	if err = s.failure(ctx, err, "delete", key); errors.Is(err, object.ErrNotFound) {
		return nil
	}
	return err
}

// List implements objects.Store.
func (s *Store) List(ctx context.Context, before time.Time) iter.Seq2[object.Entry, error] {
	return func(yield func(object.Entry, error) bool) {
		options := minio.ListObjectsOptions{Prefix: s.prefix, Recursive: true}
		for found := range s.client.ListObjectsIter(ctx, s.bucket, options) {
			if found.Err != nil {
				yield(object.Entry{}, s.failure(ctx, found.Err, "list", s.bucket))
				return
			}
			key := strings.TrimPrefix(found.Key, s.prefix)
			if object.ValidateKey(key) != nil || !found.LastModified.Before(before) {
				continue
			}
			if !yield(object.Entry{Key: key, Size: found.Size, Modified: found.LastModified}, nil) {
				return
			}
		}
		if err := ctx.Err(); err != nil { // the client ends the list without an error
			yield(object.Entry{}, err)
		}
	}
}

// URL implements objects.Store. The client downloads, and does not show, what it gets.
func (s *Store) URL(ctx context.Context, key, filename string, ttl time.Duration) (string, error) {
	if err := object.ValidateKey(key); err != nil || !s.presign {
		return "", err
	}
	signed, err := s.client.PresignedGetObject(ctx, s.bucket, s.prefix+key, ttl, url.Values{
		"response-content-disposition": {mime.FormatMediaType("attachment", map[string]string{"filename": filename})},
		"response-content-type":        {"application/octet-stream"},
	})
	if err != nil {
		return "", s.failure(ctx, err, "sign a URL of", key)
	}
	return signed.String(), nil
}

// Check implements objects.Store.
func (s *Store) Check(ctx context.Context) error {
	exists, err := s.client.BucketExists(ctx, s.bucket)
	if err == nil && !exists {
		err = errors.New("the bucket does not exist: create it")
	}
	return s.failure(ctx, err, "check bucket", s.bucket)
}

// Close implements objects.Store. It closes idle connections.
func (s *Store) Close() error {
	s.transport.CloseIdleConnections()
	return nil
}

// failure returns the error for the caller, nil for nil.
func (s *Store) failure(ctx context.Context, err error, operation, subject string) error {
	switch {
	case err == nil:
		return nil
	case minio.ToErrorResponse(err).Code == minio.NoSuchKey:
		return object.ErrNotFound
	default:
		return object.Unavailable(ctx, err, operation, subject)
	}
}
