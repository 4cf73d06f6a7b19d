package artifact

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"lockstep.internal/services/runners/objects"
)

// deleteTimeout bounds the deletion of an object whose uploader is gone.
const deleteTimeout = 15 * time.Second

// Store keeps objects; see package objects.
type Store interface {
	Put(ctx context.Context, key string, content io.Reader, limit int64) (objects.Info, error)
	OpenAt(ctx context.Context, key string) (objects.ReaderAt, int64, error)
	Delete(ctx context.Context, key string) error
}

// Upload is a file that a runner sends.
type Upload struct {
	JobID int64
	Kind  Kind
	// Limit of the size in bytes: the smallest of those of the type, the project and the job.
	Limit  int64
	Bounds Bounds
}

// Received is a valid file in the store. It is visible when a row names its key.
type Received struct {
	Key    string
	Info   objects.Info
	Report Report
}

// Receive stores content under a new key and checks it. If it returns an error, it has deleted the object, or [Collect]
// will. Errors are those of the store and of [Check].
func Receive(ctx context.Context, store Store, upload Upload, content io.Reader) (Received, error) {
	key := Key(upload.JobID)
	info, err := store.Put(ctx, key, content, upload.Limit)
	if err != nil {
		return Received{}, fmt.Errorf("store %s: %w", key, err)
	}
	report, err := checkStored(ctx, store, key, upload)
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deleteTimeout)
		defer cancel()
		return Received{}, errors.Join(err, store.Delete(ctx, key))
	}
	return Received{Key: key, Info: info, Report: report}, nil
}

func checkStored(ctx context.Context, store Store, key string, upload Upload) (Report, error) {
	content, size, err := store.OpenAt(ctx, key)
	if err != nil {
		return Report{}, fmt.Errorf("check %s: %w", key, err)
	}
	defer content.Close() //nolint:errcheck // only read
	return Check(ctx, upload.Kind.Format, content, size, upload.Bounds)
}
