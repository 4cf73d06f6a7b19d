package artifact_test

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/artifact"
)

// archive returns a zip archive with these entries: name, content, name, content …
func archive(t testing.TB, entries ...string) []byte {
	t.Helper()
	var buffer bytes.Buffer
	writer := zip.NewWriter(&buffer)
	writer.RegisterCompressor(zip.Deflate, func(w io.Writer) (io.WriteCloser, error) {
		return flate.NewWriter(w, flate.BestSpeed)
	})
	for i := 0; i < len(entries); i += 2 {
		entry, err := writer.Create(entries[i])
		require.NoError(t, err)
		_, err = io.WriteString(entry, entries[i+1])
		require.NoError(t, err)
	}
	require.NoError(t, writer.Close())
	return buffer.Bytes()
}

func gzipped(t testing.TB, content string) []byte {
	t.Helper()
	var buffer bytes.Buffer
	writer, err := gzip.NewWriterLevel(&buffer, gzip.BestSpeed)
	require.NoError(t, err)
	_, err = io.WriteString(writer, content)
	require.NoError(t, err)
	require.NoError(t, writer.Close())
	return buffer.Bytes()
}

// noise returns text that cannot be compressed much.
func noise(size int) string {
	content := make([]byte, size)
	source := rand.NewChaCha8([32]byte{7})
	_, _ = source.Read(content) // it does not fail
	return string(content)
}

func check(t testing.TB, format artifact.Format, file []byte, bounds artifact.Bounds) (artifact.Report, error) {
	t.Helper()
	return artifact.Check(t.Context(), format, bytes.NewReader(file), int64(len(file)), bounds)
}

func requireInvalid(t testing.TB, err error, reason string) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, errcode.InvalidArgument, fault.From(err).Code, "%v", err)
	require.ErrorContains(t, err, reason)
}

func TestWholeFilesAreVerified(t *testing.T) {
	t.Parallel()
	long := noise(2 << 20) // several windows
	for name, test := range map[string]struct {
		format  artifact.Format
		file    []byte
		entries int
	}{
		"zip":               {artifact.Zip, archive(t, "a", "text", "dir/", "", "dir/b", "more"), 3},
		"zip of long files": {artifact.Zip, archive(t, "a", long, "b", long), 2},
		"zip of nothing":    {artifact.Zip, archive(t), 0},
		"gzip":              {artifact.Gzip, gzipped(t, "text"), 0},
		"long gzip":         {artifact.Gzip, gzipped(t, long), 0},
		"two gzip streams":  {artifact.Gzip, append(gzipped(t, "a"), gzipped(t, "b")...), 0},
	} {
		report, err := check(t, test.format, test.file, artifact.DefaultBounds())
		require.NoError(t, err, name)
		require.Equal(t, artifact.Report{Entries: test.entries, Verified: true}, report, name)
	}
	_, err := check(t, artifact.Raw, []byte("anything"), artifact.DefaultBounds())
	require.NoError(t, err)
}

func TestEmptyFileIsInvalid(t *testing.T) {
	t.Parallel()
	for _, format := range []artifact.Format{artifact.Zip, artifact.Gzip, artifact.Raw} {
		_, err := check(t, format, nil, artifact.DefaultBounds())
		requireInvalid(t, err, "it is empty")
	}
}

func TestEachTruncationIsInvalid(t *testing.T) {
	t.Parallel()
	for format, file := range map[artifact.Format][]byte{
		artifact.Zip: archive(t, "a", noise(500), "b", "text"), artifact.Gzip: gzipped(t, noise(500)),
	} {
		for size := 1; size < len(file); size++ {
			_, err := check(t, format, file[:size], artifact.DefaultBounds())
			requireInvalid(t, err, "it is no ")
		}
	}
}

func TestChangedContentIsInvalid(t *testing.T) {
	t.Parallel()
	for format, file := range map[artifact.Format][]byte{
		artifact.Zip: archive(t, "a", noise(500)), artifact.Gzip: gzipped(t, noise(500)),
	} {
		file[200] ^= 1
		_, err := check(t, format, file, artifact.DefaultBounds())
		requireInvalid(t, err, "checksum")
		// Only the structure of large files is checked.
		bounds := artifact.DefaultBounds()
		bounds.Checked = int64(len(file) - 1)
		report, err := check(t, format, file, bounds)
		require.NoError(t, err)
		require.False(t, report.Verified)
	}
}

func TestOtherFormatIsInvalid(t *testing.T) {
	t.Parallel()
	_, err := check(t, artifact.Zip, gzipped(t, "a"), artifact.DefaultBounds())
	requireInvalid(t, err, "it is no complete zip archive")
	_, err = check(t, artifact.Gzip, archive(t, "a", "b"), artifact.DefaultBounds())
	requireInvalid(t, err, "it is no gzip file")
	_, err = check(t, artifact.Gzip, append(gzipped(t, "a"), "garbage"...), artifact.DefaultBounds())
	requireInvalid(t, err, "it is no complete gzip file")
	_, err = check(t, "tar", []byte("x"), artifact.DefaultBounds())
	require.ErrorContains(t, err, `format "tar" is not known`)
}

func TestNamesThatEscapeAreInvalid(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"../a", "a/../../b", "/etc/passwd", `..\a`, `a\..\..\b`, `\a`, `C:\a`, "C:/a", "..", "a/../..",
	} {
		_, err := check(t, artifact.Zip, archive(t, "good", "x", name, "x"), artifact.DefaultBounds())
		requireInvalid(t, err, "leads out of its folder")
	}
	for _, name := range []string{"a/../b", "..a", "a/..b/c", "...", "a:b:c/d", "C:a", `a\b`, "./a"} {
		_, err := check(t, artifact.Zip, archive(t, name, "x"), artifact.DefaultBounds())
		require.NoError(t, err, name)
	}
}

func TestArchiveIsBounded(t *testing.T) {
	t.Parallel()
	var entries []string
	for i := range 3000 {
		entries = append(entries, fmt.Sprintf("folder/with/a/long/name/%d", i), "")
	}
	file := archive(t, entries...)
	bounds := artifact.DefaultBounds()
	bounds.Entries = 3000
	report, err := check(t, artifact.Zip, file, bounds)
	require.NoError(t, err)
	require.Equal(t, artifact.Report{Entries: 3000, Verified: true}, report)
	bounds.Entries = 2999
	_, err = check(t, artifact.Zip, file, bounds)
	requireInvalid(t, err, "it has 3000 entries, and 2999 are allowed")
	bounds.Directory = 20 << 10
	_, err = check(t, artifact.Zip, file, bounds)
	requireInvalid(t, err, "its central directory is larger than 20480 bytes")
}

func TestBombIsDecompressedUpToTheBound(t *testing.T) {
	t.Parallel()
	zeros := strings.Repeat("\x00", 1<<20)
	bounds := artifact.DefaultBounds()
	bounds.Decompressed = 2<<20 - 1
	for format, file := range map[artifact.Format][]byte{
		artifact.Zip: archive(t, "a", zeros, "b", zeros), artifact.Gzip: gzipped(t, zeros+zeros),
	} {
		// The checksum behind the bound is wrong, and is not reached.
		if format == artifact.Gzip {
			file[len(file)-8] ^= 1
		}
		report, err := check(t, format, file, bounds)
		require.NoError(t, err)
		require.False(t, report.Verified)
	}
	bounds.Decompressed++
	report, err := check(t, artifact.Zip, archive(t, "a", zeros, "b", zeros), bounds)
	require.NoError(t, err)
	require.True(t, report.Verified)
}

func TestOverlappingEntriesAreReadUpToABound(t *testing.T) {
	t.Parallel()
	file, source := overlapping(t, 2000), &counted{}
	source.Reader = bytes.NewReader(file)
	report, err := artifact.Check(t.Context(), artifact.Zip, source, int64(len(file)), artifact.DefaultBounds())
	require.NoError(t, err)
	require.Equal(t, artifact.Report{Entries: 2000}, report)
	require.Less(t, source.bytes, 12*int64(len(file)))
}

// overlapping returns an archive of entries that all have the same 3 MiB, and decompress to nothing.
func overlapping(t *testing.T, entries int) []byte {
	t.Helper()
	var empty bytes.Buffer // a block without content
	deflate, err := flate.NewWriter(&empty, 0)
	require.NoError(t, err)
	require.NoError(t, deflate.Flush())
	content := bytes.Repeat(empty.Bytes(), 3<<20/empty.Len())
	content = append(content, 1, 0, 0, 0xff, 0xff) // the last block
	var file bytes.Buffer
	header := func(signature uint32, fields ...any) {
		for _, field := range append([]any{signature}, fields...) {
			require.NoError(t, binary.Write(&file, binary.LittleEndian, field))
		}
	}
	size := uint32(len(content))
	header(0x04034b50, uint16(20), uint16(0), uint16(8), uint32(0), uint32(0), size, uint32(0), uint16(1), uint16(0))
	file.WriteString("a")
	file.Write(content)
	start := file.Len()
	for range entries {
		header(0x02014b50, uint16(20), uint16(20), uint16(0), uint16(8), uint32(0), uint32(0), size, uint32(0), uint16(1),
			uint16(0), uint16(0), uint16(0), uint16(0), uint32(0), uint32(0))
		file.WriteString("a")
	}
	length := file.Len() - start
	header(0x06054b50, uint16(0), uint16(0), uint16(entries), uint16(entries), uint32(length), uint32(start), uint16(0))
	return file.Bytes()
}

// counted counts what is read.
type counted struct {
	*bytes.Reader

	bytes, calls int64
}

func (c *counted) ReadAt(p []byte, offset int64) (int, error) {
	c.bytes += int64(len(p))
	c.calls++
	return c.Reader.ReadAt(p, offset)
}

func TestStoreIsReadInLargePiecesOnce(t *testing.T) {
	t.Parallel()
	file, source := archive(t, "a", noise(3<<20), "b", "text"), &counted{}
	source.Reader = bytes.NewReader(file)
	_, err := artifact.Check(t.Context(), artifact.Zip, source, int64(len(file)), artifact.DefaultBounds())
	require.NoError(t, err)
	require.LessOrEqual(t, source.calls, int64(6))
	require.Less(t, source.bytes, int64(6<<20))
}

func TestUnknownMethodAndEncryptionAreNotVerified(t *testing.T) {
	t.Parallel()
	for name, header := range map[string]*zip.FileHeader{
		"method":     {Name: "a", Method: 93},
		"encryption": {Name: "a", Method: zip.Store, Flags: 1},
	} {
		content := []byte("opaque")
		header.CRC32, header.CompressedSize64 = crc32.ChecksumIEEE(content)+1, uint64(len(content))
		header.UncompressedSize64 = header.CompressedSize64
		var buffer bytes.Buffer
		writer := zip.NewWriter(&buffer)
		entry, err := writer.CreateRaw(header)
		require.NoError(t, err)
		_, err = entry.Write(content)
		require.NoError(t, err)
		require.NoError(t, writer.Close())
		report, err := check(t, artifact.Zip, buffer.Bytes(), artifact.DefaultBounds())
		require.NoError(t, err, name)
		require.Equal(t, artifact.Report{Entries: 1}, report, name)
	}
}

// brokenAt is content whose store fails after an offset.
type brokenAt struct {
	*bytes.Reader

	offset int64
	err    error
}

func (b *brokenAt) ReadAt(p []byte, offset int64) (int, error) {
	if offset >= b.offset {
		return 0, b.err
	}
	return b.Reader.ReadAt(p, offset)
}

func TestErrorOfTheStoreIsNotOneOfTheFile(t *testing.T) {
	t.Parallel()
	lost := errors.New("the connection broke")
	for format, file := range map[artifact.Format][]byte{
		artifact.Zip: archive(t, "a", noise(2<<20)), artifact.Gzip: gzipped(t, noise(2<<20)),
	} {
		for _, from := range []int64{0, 1 << 20} {
			source := &brokenAt{bytes.NewReader(file), from, lost}
			_, err := artifact.Check(t.Context(), format, source, int64(len(file)), artifact.DefaultBounds())
			require.ErrorIs(t, err, lost)
		}
		short := bytes.NewReader(file[:1000])
		_, err := artifact.Check(t.Context(), format, short, int64(len(file)), artifact.DefaultBounds())
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		require.Equal(t, errcode.Internal, fault.From(err).Code, "the object is shorter than the store says")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = artifact.Check(ctx, format, bytes.NewReader(file), int64(len(file)), artifact.DefaultBounds())
		require.ErrorIs(t, err, context.Canceled)
	}
}

func FuzzCheck(f *testing.F) {
	f.Add(archive(f, "a", "text", "../b", ""))
	f.Add(gzipped(f, "text"))
	f.Add([]byte("PK\x05\x06"))
	bounds := artifact.Bounds{Entries: 10, Directory: 1 << 12, Checked: 1 << 16, Decompressed: 1 << 16}
	f.Fuzz(func(t *testing.T, file []byte) {
		for _, format := range []artifact.Format{artifact.Zip, artifact.Gzip, artifact.Raw} {
			report, err := check(t, format, file, bounds)
			switch {
			case err != nil && fault.From(err).Code != errcode.InvalidArgument:
				t.Fatalf("%s: %v", format, err)
			case report.Entries > bounds.Entries:
				t.Fatalf("%d entries", report.Entries)
			}
		}
	})
}
