package artifact_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/artifact"
	"lockstep.internal/services/runners/objects"
)

func TestEachTypeHasOneFormat(t *testing.T) {
	t.Parallel()
	for typ, format := range map[string]artifact.Format{
		"archive": artifact.Zip, "metadata": artifact.Gzip, "trace": artifact.Raw, "junit": artifact.Gzip,
		"sast": artifact.Raw,
	} {
		kind, err := artifact.ParseKind(typ, string(format))
		require.NoError(t, err)
		require.Equal(t, artifact.Kind{Type: typ, Format: format}, kind)
		require.Contains(t, artifact.Types(), typ)
		for _, other := range []string{"zip", "gzip", "raw", "", "tar"} {
			if other == string(format) {
				continue
			}
			_, err := artifact.ParseKind(typ, other)
			require.Equal(t, errcode.InvalidArgument, fault.From(err).Code)
			require.ErrorContains(t, err, "artifact_format: ")
			require.ErrorContains(t, err, "use "+string(format))
		}
	}
	require.True(t, slices.IsSorted(artifact.Types()))
	for _, typ := range []string{"", "Archive", "archive ", "x"} {
		_, err := artifact.ParseKind(typ, "zip")
		require.Equal(t, errcode.InvalidArgument, fault.From(err).Code)
		require.ErrorContains(t, err, "artifact_type: ")
	}
}

func TestSizesAreOfATypeOrOfAllReports(t *testing.T) {
	t.Parallel()
	sizes := artifact.Sizes{Archive: 1, Metadata: 2, Trace: 3, Report: 4}
	for typ, want := range map[string]int64{"archive": 1, "metadata": 2, "trace": 3, "junit": 4, "sast": 4} {
		require.Equal(t, want, sizes.Of(typ), typ)
	}
	for _, typ := range artifact.Types() {
		require.Positive(t, artifact.DefaultSizes().Of(typ))
	}
}

func TestFilenameIsOneVisibleName(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"artifacts.zip", "späße.zip", "a b", "..a", "-", strings.Repeat("x", 255), "عربي.zip", "a\u200db.zip",
	} {
		require.NoError(t, artifact.ValidateFilename(name), "%q", name)
	}
	for _, name := range []string{
		"", ".", "..", "a/b", "/a", `a\b`, `..\a`, "a\x00", "a\nb", "\x7f", "a\u0085", "\xff", strings.Repeat("x", 256),
		"a\u202egpj.exe", "a\u2066b",
	} {
		err := artifact.ValidateFilename(name)
		require.Equal(t, errcode.InvalidArgument, fault.From(err).Code, "%q", name)
		require.ErrorContains(t, err, "file name ")
	}
}

func TestKeysAreValidAndDiffer(t *testing.T) {
	t.Parallel()
	first, second := artifact.Key(1<<62), artifact.Key(1<<62)
	require.NotEqual(t, first, second)
	require.NoError(t, objects.ValidateKey(first))
	require.True(t, strings.HasPrefix(first, "jobs/4611686018427387904/"))
}

func FuzzFilename(f *testing.F) {
	for _, name := range []string{"a.zip", "..", "a/b", "\xff", "a\u202eb"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		err := artifact.ValidateFilename(name)
		if err == nil && (strings.ContainsAny(name, "/\\\x00\r\n") || name == "" || name == ".." || len(name) > 255) {
			t.Fatalf("%q is accepted", name)
		}
		if err != nil && len(err.Error()) > 2000 {
			t.Fatalf("the error has %d bytes", len(err.Error()))
		}
	})
}
