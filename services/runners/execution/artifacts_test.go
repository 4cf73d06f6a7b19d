package execution_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/artifact"
	"lockstep.internal/services/runners/execution"
	"lockstep.internal/services/runners/gitlab"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/objects"
	"lockstep.internal/services/runners/objects/disk"
	"lockstep.internal/services/runners/postgres"
	"lockstep.internal/services/runners/wire"
	"lockstep.internal/tools/testkit/runnerclient"
)

// maxArchive is the size of the largest archive in bytes.
const maxArchive = 4000

// storage is the artifacts of a replica, and the store that all replicas share.
type storage struct {
	*execution.Artifacts

	f       *fixture
	rows    postgres.Artifacts
	objects objects.Store
}

// linking is a store that has addresses for downloads.
type linking struct{ objects.Store }

func (linking) URL(_ context.Context, key, filename string, ttl time.Duration) (string, error) {
	return fmt.Sprintf("https://objects.example/%s?%s&%s", key, filename, ttl), nil
}

func (f *fixture) storage(change ...func(objects.Store) objects.Store) *storage {
	f.t.Helper()
	store, err := objects.Open(objects.Config{Kind: objects.KindDisk, Disk: disk.Config{Folder: f.t.TempDir()}})
	require.NoError(f.t, err)
	f.t.Cleanup(func() { require.NoError(f.t, store.Close()) })
	for _, c := range change {
		store = c(store)
	}
	s := &storage{f: f, rows: postgres.Artifacts{Pool: f.pool}, objects: store}
	s.Artifacts = s.serve(f.first.Jobs)
	return s
}

func (s *storage) serve(jobs *execution.Jobs) *execution.Artifacts {
	sizes := artifact.DefaultSizes()
	sizes.Archive = maxArchive
	return execution.NewArtifacts(execution.ArtifactConfig{
		Jobs: jobs, Store: s.rows, Objects: s.objects, Sizes: sizes, Bounds: artifact.DefaultBounds(),
		Expiry: artifact.DefaultExpiry(),
	})
}

func (s *storage) cleaner() execution.Cleaner {
	return execution.Cleaner{
		Pool: s.f.pool, Store: s.rows, Objects: s.objects, Logger: slog.New(slog.DiscardHandler), Now: s.f.clock.now,
	}
}

// stored returns the number of objects.
func (s *storage) stored() int {
	s.f.t.Helper()
	n := 0
	for _, err := range s.objects.List(s.f.t.Context(), time.Now().Add(time.Hour)) {
		require.NoError(s.f.t, err)
		n++
	}
	return n
}

// upload stores an archive.
func (s *storage) upload(ref gitlab.JobRef, content io.Reader) (gitlab.JobState, error) {
	return s.Store(s.f.t.Context(), ref, gitlab.Upload{Filename: "a.zip", Type: "archive", Format: "zip"}, content)
}

// download returns the content of the archive of a job.
func (s *storage) download(ref gitlab.JobRef) ([]byte, error) {
	got, err := s.Open(s.f.t.Context(), ref, false)
	if err != nil {
		return nil, err
	}
	defer got.Content.Close()
	content, err := io.ReadAll(got.Content)
	require.NoError(s.f.t, err)
	require.Len(s.f.t, content, int(got.Size))
	return content, nil
}

func archive(t *testing.T, text string) []byte {
	t.Helper()
	content, err := runnerclient.Zip(map[string][]byte{"out": []byte(text)})
	require.NoError(t, err)
	return content
}

func TestArtifactIsDownloadedByTheJobsThatNeedIt(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := f.storage()
	build, test, other := f.running(7), f.running(8, 7), f.running(9, 8)
	content := archive(t, "hello")
	state, err := s.upload(build, bytes.NewReader(content))
	require.NoError(t, err)
	require.Equal(t, wire.StatusRunning, state.Status)
	_, _, err = f.first.Update(t.Context(), build, wire.UpdateRequest{State: wire.UpdateSuccess})
	require.NoError(t, err)

	got, err := s.download(gitlab.JobRef{ID: 7, Token: test.Token})
	require.NoError(t, err)
	require.Equal(t, content, got)
	for why, token := range map[string]string{"needs it not": other.Token, "own, ended": build.Token, "malformed": "x"} {
		_, err = s.download(gitlab.JobRef{ID: 7, Token: token})
		require.True(t, fault.Is(err, errcode.PermissionDenied), "%s: %v", why, err)
	}
	_, err = s.download(gitlab.JobRef{ID: 8, Token: other.Token})
	require.True(t, fault.Is(err, errcode.NotFound), "%v", err)
	_, _, err = f.first.Update(t.Context(), test, wire.UpdateRequest{State: wire.UpdateSuccess})
	require.NoError(t, err)
	_, err = s.download(gitlab.JobRef{ID: 7, Token: test.Token})
	require.True(t, fault.Is(err, errcode.PermissionDenied), "the job that downloads has ended: %v", err)
}

func TestRunnerThatFollowsRedirectsGetsAnAddress(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := f.storage(func(store objects.Store) objects.Store { return linking{store} })
	build, test := f.running(7), f.running(8, 7)
	_, err := s.upload(build, bytes.NewReader(archive(t, "hello")))
	require.NoError(t, err)
	got, err := s.Open(t.Context(), gitlab.JobRef{ID: 7, Token: test.Token}, true)
	require.NoError(t, err)
	require.Contains(t, got.Location, "https://objects.example/jobs/7/")
	require.Contains(t, got.Location, "?a.zip&5m0s")
	require.Nil(t, got.Content)
	_, err = s.download(gitlab.JobRef{ID: 7, Token: test.Token})
	require.NoError(t, err)
}

func TestUploadThatIsNotValidStoresNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := f.storage()
	ref := f.running(7)
	content := archive(t, "hello")
	for why, c := range map[string]struct {
		upload  gitlab.Upload
		content io.Reader
		code    errcode.Code
	}{
		"too large": {
			gitlab.Upload{Filename: "a", Type: "archive", Format: "zip"},
			strings.NewReader(strings.Repeat("x", maxArchive+1)),
			errcode.PayloadTooLarge,
		},
		"no archive": {
			gitlab.Upload{Filename: "a", Type: "archive", Format: "zip"}, strings.NewReader("hello"), errcode.InvalidArgument,
		},
		"empty": {
			gitlab.Upload{Filename: "a", Type: "archive", Format: "zip"}, strings.NewReader(""), errcode.InvalidArgument,
		},
		"unknown type": {
			gitlab.Upload{Filename: "a", Type: "x", Format: "zip"}, bytes.NewReader(content), errcode.InvalidArgument,
		},
		"name of a folder": {
			gitlab.Upload{Filename: "../a", Type: "archive", Format: "zip"}, bytes.NewReader(content), errcode.InvalidArgument,
		},
		"wrong expiry": {
			gitlab.Upload{Filename: "a", Type: "archive", Format: "zip", ExpireIn: "soon"},
			bytes.NewReader(content),
			errcode.InvalidArgument,
		},
	} {
		_, err := s.Store(t.Context(), ref, c.upload, c.content)
		require.True(t, fault.Is(err, c.code), "%s: %v", why, err)
	}
	broken := errors.New("the runner is gone")
	_, err := s.upload(ref, io.MultiReader(bytes.NewReader(content[:50]), iotest.ErrReader(broken)))
	require.ErrorIs(t, err, broken)
	_, err = s.upload(gitlab.JobRef{ID: 8, Token: ref.Token}, bytes.NewReader(content))
	require.True(t, fault.Is(err, errcode.PermissionDenied), "%v", err)
	require.Zero(t, f.count(`SELECT count(*) FROM artifacts`))
	require.Zero(t, s.stored())
}

func TestArtifactIsReplacedOnlyWhileItsJobRuns(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := f.storage()
	build, test := f.running(7), f.running(8, 7)
	read := func() string {
		content, err := s.download(gitlab.JobRef{ID: 7, Token: test.Token})
		require.NoError(t, err)
		return string(content)
	}
	one, two := archive(t, "one"), archive(t, "two")
	for _, content := range [][]byte{one, one, two} {
		_, err := s.upload(build, bytes.NewReader(content))
		require.NoError(t, err)
		require.Equal(t, string(content), read())
	}
	require.Equal(t, 1, f.count(`SELECT count(*) FROM artifacts`))
	require.Equal(t, 2, f.count(`SELECT count(*) FROM unused_objects`), "the repeated one and the replaced one")
	f.cancel(7)
	_, err := s.upload(build, bytes.NewReader(two))
	require.NoError(t, err)
	_, err = s.upload(build, bytes.NewReader(one))
	require.True(t, fault.Is(err, errcode.PermissionDenied), "%v", err)
	_, _, err = f.first.Update(t.Context(), build, wire.UpdateRequest{State: wire.UpdateSuccess})
	require.NoError(t, err)
	_, err = s.upload(build, bytes.NewReader(two))
	require.True(t, fault.Is(err, errcode.PermissionDenied), "%v", err)
	require.Equal(t, string(two), read())
}

// TestJobThatEndsDuringAnUploadHasNoArtifact ends the job before the last byte.
func TestJobThatEndsDuringAnUploadHasNoArtifact(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := f.storage()
	ref := f.running(7)
	end := readerFunc(func([]byte) (int, error) {
		_, _, err := f.first.Update(t.Context(), ref, wire.UpdateRequest{State: wire.UpdateSuccess})
		if err != nil {
			return 0, err
		}
		return 0, io.EOF
	})
	state, err := s.upload(ref, io.MultiReader(bytes.NewReader(archive(t, "late")), end))
	require.True(t, fault.Is(err, errcode.PermissionDenied), "%v", err)
	require.Equal(t, wire.StatusSuccess, state.Status)
	require.Zero(t, f.count(`SELECT count(*) FROM artifacts`))
	require.Equal(t, job.Success, f.job(7).State)
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestArtifactsExpireAndTheirContentIsDeleted(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := f.storage()
	build, test := f.running(7), f.running(8, 7)
	_, err := s.Store(t.Context(), build,
		gitlab.Upload{Filename: "a.zip", Type: "archive", Format: "zip", ExpireIn: "30 minutes"},
		bytes.NewReader(archive(t, "x")))
	require.NoError(t, err)
	_, err = s.Store(t.Context(), build,
		gitlab.Upload{Filename: "j.json", Type: "sast", Format: "raw", ExpireIn: "never"}, strings.NewReader("{}"))
	require.NoError(t, err)
	require.NoError(t, s.cleaner().Once(t.Context()))
	require.Equal(t, 2, f.count(`SELECT count(*) FROM artifacts`))
	f.clock.pass(30 * time.Minute)
	_, err = s.download(gitlab.JobRef{ID: 7, Token: test.Token})
	require.True(t, fault.Is(err, errcode.NotFound), "before it is deleted: %v", err)
	require.NoError(t, s.cleaner().Once(t.Context()))
	require.Equal(t, 1, f.count(`SELECT count(*) FROM artifacts`))
	require.Equal(t, 2, s.stored(), "a download may still be in progress")
	f.clock.pass(24 * time.Hour)
	require.NoError(t, s.cleaner().Once(t.Context()))
	require.Equal(t, 1, s.stored())
	require.Zero(t, f.count(`SELECT count(*) FROM unused_objects`))
}

// failing is a store that cannot delete.
type failing struct{ objects.Store }

func (failing) Delete(context.Context, string) error { return errBroken }

func TestObjectThatCannotBeDeletedIsKeptInMind(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := f.storage()
	ref := f.running(7)
	for _, text := range []string{"one", "two"} {
		_, err := s.upload(ref, bytes.NewReader(archive(t, text)))
		require.NoError(t, err)
	}
	f.clock.pass(24 * time.Hour)
	broken := s.cleaner()
	broken.Objects = failing{s.objects}
	require.ErrorIs(t, broken.Once(t.Context()), errBroken)
	require.Equal(t, 1, f.count(`SELECT count(*) FROM unused_objects`))
	require.NoError(t, s.cleaner().Once(t.Context()))
	require.Zero(t, f.count(`SELECT count(*) FROM unused_objects`))
	require.Equal(t, 1, s.stored())
}

// crashing is a store of a process that ends before it changes a job.
type crashing struct{ execution.Store }

func (crashing) UpdateJob(context.Context, int64, execution.Decide) error { return errBroken }

func TestUploadThatCrashesLeavesAnUnusedObject(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := f.storage()
	ref := f.running(7)
	s.Artifacts = s.serve(f.serve(crashing{f.first.store}, f.first.keys))
	_, err := s.upload(ref, bytes.NewReader(archive(t, "x")))
	require.ErrorIs(t, err, errBroken)
	require.Equal(t, 1, s.stored())
	require.Equal(t, 1, f.count(`SELECT count(*) FROM unused_objects`))
	f.clock.pass(24 * time.Hour)
	require.NoError(t, s.cleaner().Once(t.Context()))
	require.Zero(t, s.stored())
}

// TestUploadThatTakesADayIsNotStored cleans before the last step of an upload.
func TestUploadThatTakesADayIsNotStored(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := f.storage()
	f.pending(7)
	f.exec(`UPDATE jobs SET timeout_s = 1000000 WHERE id = 7`)
	ref := f.take(7)
	clean := readerFunc(func([]byte) (int, error) {
		f.clock.pass(24 * time.Hour)
		if err := s.cleaner().Once(t.Context()); err != nil {
			return 0, err
		}
		return 0, io.EOF
	})
	_, err := s.upload(ref, io.MultiReader(bytes.NewReader(archive(t, "x")), clean))
	require.True(t, fault.Is(err, errcode.PermissionDenied), "%v", err)
	require.Zero(t, f.count(`SELECT count(*) FROM artifacts`), "an artifact without content")
}

func TestObjectsThatTheDatabaseDoesNotKnowAreDeleted(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := f.storage()
	build, test := f.running(7), f.running(8, 7)
	_, err := s.upload(build, bytes.NewReader(archive(t, "x")))
	require.NoError(t, err)
	_, err = s.objects.Put(t.Context(), "jobs/6/lost", strings.NewReader("x"), 100)
	require.NoError(t, err)
	cleaner := s.cleaner()
	cleaner.Now = func() time.Time { return time.Now().Add(23 * time.Hour) } // the store has its own clock
	require.NoError(t, cleaner.Search(t.Context()))
	require.Equal(t, 2, s.stored())
	cleaner.Now = func() time.Time { return time.Now().Add(25 * time.Hour) }
	require.NoError(t, cleaner.Search(t.Context()))
	require.Equal(t, 1, s.stored())
	_, err = s.download(gitlab.JobRef{ID: 7, Token: test.Token})
	require.NoError(t, err)
}
