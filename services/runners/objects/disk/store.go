package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"
	"time"

	"github.com/google/uuid"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/objects/object"
)

// copySize is the size of a read, in bytes.
const copySize = 256 << 10

// Store keeps objects in a folder.
type Store struct {
	folder string
	// sync makes a file or a folder durable. Tests replace it.
	sync func(*os.File) error
}

// New returns the store of a folder.
func New(cfg Config) *Store { return &Store{folder: cfg.Folder, sync: (*os.File).Sync} }

// root opens the folder. No name leads out of it, also not through a symbolic link. It is opened for each operation, so
// that a volume can be mounted later.
func (s *Store) root() (*os.Root, error) {
	root, err := os.OpenRoot(s.folder)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: create it, or mount its volume", err)
	}
	return root, err
}

// Put implements objects.Store.
func (s *Store) Put(ctx context.Context, key string, reader io.Reader, limit int64) (object.Info, error) {
	if err := object.ValidateKey(key); err != nil {
		return object.Info{}, err
	}
	content := object.NewContent(ctx, reader, limit)
	err := s.put(key, content)
	switch {
	case content.Err() != nil:
		return object.Info{}, content.Err()
	case err != nil:
		return object.Info{}, s.failure(ctx, err, "store", key)
	}
	return content.Info(), nil
}

func (s *Store) put(key string, content *object.Content) error {
	root, err := s.root()
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // only a handle
	folders, name := location(key)
	if err := s.makeFolders(root, folders); err != nil {
		return err
	}
	folder := folders[levels-1]
	written := path.Join(folder, temporary+uuid.NewString())
	if err := s.write(root, written, content); err != nil {
		return remove(root, written, err)
	}
	if err := root.Rename(written, path.Join(folder, name)); err != nil {
		return remove(root, written, err)
	}
	return s.syncFolder(root, folder)
}

// makeFolders creates the folders of a key. What is new is synced in the folder above it.
func (s *Store) makeFolders(root *os.Root, folders [levels]string) error {
	for _, folder := range folders {
		switch err := root.Mkdir(folder, 0o700); {
		case errors.Is(err, fs.ErrExist):
		case err != nil:
			return err //nolint:wrapcheck // it names the folder
		default:
			if err := s.syncFolder(root, path.Dir(folder)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Store) write(root *os.Root, name string, content io.Reader) error {
	file, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err //nolint:wrapcheck // it names the file
	}
	// The file must not read from the content itself: that ends the limit of a read.
	_, err = io.CopyBuffer(struct{ io.Writer }{file}, content, make([]byte, copySize))
	if err == nil {
		err = s.sync(file)
	}
	return errors.Join(err, file.Close())
}

// remove removes a file that is not complete, and returns err.
func remove(root *os.Root, name string, err error) error {
	if removed := root.Remove(name); removed != nil && !errors.Is(removed, fs.ErrNotExist) {
		return errors.Join(err, removed)
	}
	return err
}

func (s *Store) syncFolder(root *os.Root, name string) error {
	folder, err := root.Open(name)
	if err != nil {
		return err //nolint:wrapcheck // it names the folder
	}
	return errors.Join(s.sync(folder), folder.Close())
}

// Open implements objects.Store.
func (s *Store) Open(ctx context.Context, key string) (io.ReadCloser, int64, error) {
	file, size, err := s.open(ctx, key)
	if err != nil {
		return nil, 0, err
	}
	return file, size, nil
}

// OpenAt implements objects.Store. The content can be read after the object was deleted.
func (s *Store) OpenAt(ctx context.Context, key string) (object.ReaderAt, int64, error) {
	file, size, err := s.open(ctx, key)
	if err != nil {
		return nil, 0, err
	}
	return file, size, nil
}

func (s *Store) open(ctx context.Context, key string) (*os.File, int64, error) {
	if err := errors.Join(ctx.Err(), object.ValidateKey(key)); err != nil {
		return nil, 0, err
	}
	root, err := s.root()
	if err != nil {
		return nil, 0, s.failure(ctx, err, "open", key)
	}
	defer root.Close() //nolint:errcheck // only a handle
	folders, name := location(key)
	file, err := root.Open(path.Join(folders[levels-1], name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, object.ErrNotFound
	}
	if err != nil {
		return nil, 0, s.failure(ctx, err, "open", key)
	}
	info, err := file.Stat()
	if err != nil {
		return nil, 0, s.failure(ctx, errors.Join(err, file.Close()), "open", key)
	}
	return file, info.Size(), nil
}

// Delete implements objects.Store. After a power failure the object may be there again.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := errors.Join(ctx.Err(), object.ValidateKey(key)); err != nil {
		return err
	}
	root, err := s.root()
	if err != nil {
		return s.failure(ctx, err, "delete", key)
	}
	defer root.Close() //nolint:errcheck // only a handle
	folders, name := location(key)
	if err := root.Remove(path.Join(folders[levels-1], name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s.failure(ctx, err, "delete", key)
	}
	return nil
}

// URL implements objects.Store: a folder has no address.
func (s *Store) URL(_ context.Context, key, _ string, _ time.Duration) (string, error) {
	return "", object.ValidateKey(key)
}

// Check implements objects.Store: it creates and removes a file.
func (s *Store) Check(ctx context.Context) error {
	if err := s.check(); err != nil {
		return s.failure(ctx, err, "check", s.folder)
	}
	return nil
}

func (s *Store) check() error {
	root, err := s.root()
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // only a handle
	name := temporary + uuid.NewString()
	file, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err //nolint:wrapcheck // it names the file
	}
	_, err = file.WriteString("space") // a full disk still has room for names
	return errors.Join(err, file.Close(), root.Remove(name))
}

// Close implements objects.Store.
func (s *Store) Close() error { return nil }

// failure makes the fault unavailable of err.
func (s *Store) failure(ctx context.Context, err error, operation, subject string) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fault.Wrap(fmt.Errorf("%s %s: %w", operation, subject, err), errcode.Unavailable,
			"the object store has no free space: delete artifacts or enlarge its volume, then try again")
	}
	return object.Unavailable(ctx, err, operation, subject)
}
