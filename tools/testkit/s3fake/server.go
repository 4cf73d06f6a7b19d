// Package s3fake serves the S3 protocol from memory, for tests.
//
// It is a fake: it checks no signature, so any key is right and a signed URL never expires, and it limits nothing.
// Package s3d runs a real server.
package s3fake

import (
	"context"
	"encoding/xml"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

// Start serves one empty bucket. The caller closes the server.
func Start(bucket string) (*httptest.Server, error) {
	backend := s3mem.New()
	if err := backend.CreateBucket(bucket); err != nil {
		return nil, fmt.Errorf("create bucket %s: %w", bucket, err)
	}
	handler := gofakes3.New(backend, gofakes3.WithLogger(gofakes3.DiscardLog())).Server()
	if err := upload(handler, "/"+bucket+"/x"); err != nil {
		return nil, fmt.Errorf("start an upload to bucket %s: %w", bucket, err)
	}
	return httptest.NewServer(handler), nil
}

// upload starts and aborts an upload. The library lists no uploads of a bucket that never had one: it fails.
func upload(handler http.Handler, path string) error {
	started := httptest.NewRecorder()
	handler.ServeHTTP(started, httptest.NewRequestWithContext(context.Background(), http.MethodPost,
		path+"?uploads", http.NoBody))
	var upload struct {
		ID string `xml:"UploadId"`
	}
	if err := xml.Unmarshal(started.Body.Bytes(), &upload); err != nil {
		return fmt.Errorf("%s: %w", started.Body, err)
	}
	aborted := httptest.NewRecorder()
	handler.ServeHTTP(aborted, httptest.NewRequestWithContext(context.Background(), http.MethodDelete,
		path+"?uploadId="+upload.ID, http.NoBody))
	if aborted.Code != http.StatusNoContent {
		return fmt.Errorf("status %d: %s", aborted.Code, aborted.Body)
	}
	return nil
}
