package disk

import (
	"context"
	"errors"
	"io/fs"
	"iter"
	"os"
	"path"
	"strings"
	"time"

	"lockstep.internal/services/runners/objects/object"
)

// List implements objects.Store.
func (s *Store) List(ctx context.Context, before time.Time) iter.Seq2[object.Entry, error] {
	return func(yield func(object.Entry, error) bool) {
		err := s.walk(ctx, before, func(_ *os.Root, folder string, file fs.FileInfo) (bool, error) {
			key, isObject := keyOf(folder, file.Name())
			if !isObject {
				return true, nil
			}
			return yield(object.Entry{Key: key, Size: file.Size(), Modified: file.ModTime()}, nil), nil
		})
		if err != nil {
			yield(object.Entry{}, s.failure(ctx, err, "list", s.folder))
		}
	}
}

// Sweep implements objects.Store. A file that is still written has a new time.
func (s *Store) Sweep(ctx context.Context, before time.Time) (int, error) {
	removed := 0
	err := s.walk(ctx, before, func(root *os.Root, folder string, file fs.FileInfo) (bool, error) {
		if !strings.HasPrefix(file.Name(), temporary) {
			return true, nil
		}
		err := root.Remove(path.Join(folder, file.Name()))
		switch {
		case errors.Is(err, fs.ErrNotExist): // another replica was faster
			return true, nil
		case err != nil:
			return false, err //nolint:wrapcheck // it names the file
		}
		removed++
		return true, nil
	})
	if err != nil {
		return removed, s.failure(ctx, err, "sweep", s.folder)
	}
	return removed, nil
}

// visitor returns false to end the walk.
type visitor func(root *os.Root, folder string, file fs.FileInfo) (bool, error)

// walk visits the files of the store that were modified before a time.
func (s *Store) walk(ctx context.Context, before time.Time, visit visitor) error {
	root, err := s.root()
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // only a handle
	err = fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, fs.ErrNotExist): // removed since its folder was read
			return nil
		case err != nil:
			return err
		case !entry.Type().IsRegular():
			return nil
		}
		file, err := entry.Info()
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err //nolint:wrapcheck // it names the file
		case !file.ModTime().Before(before):
			return nil
		}
		more, err := visit(root, path.Dir(name), file)
		if err == nil && !more {
			return fs.SkipAll
		}
		return err
	})
	return err //nolint:wrapcheck // it names the file
}
