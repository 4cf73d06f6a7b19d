package objectstest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// newContent returns size bytes, which differ from those of another seed.
func newContent(size int64, seed byte) io.Reader {
	return io.LimitReader(rand.NewChaCha8([32]byte{seed}), size)
}

// contentOf returns the bytes of newContent.
func contentOf(size int64, seed byte) []byte {
	content := make([]byte, size)
	if _, err := io.ReadFull(newContent(size, seed), content); err != nil {
		panic(fmt.Sprintf("generate content: %v", err)) // the generator does not fail
	}
	return content
}

func hashOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// File returns the path of a new file with this content.
func File(t testing.TB, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}
