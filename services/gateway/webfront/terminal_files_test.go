package webfront

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFilesOfOthersAreThoseThatWereReviewed compares the files of xterm.js with the hashes of files.txt.
func TestFilesOfOthersAreThoseThatWereReviewed(t *testing.T) {
	t.Parallel()
	listed, err := os.ReadFile("terminal/files.txt")
	require.NoError(t, err)
	reviewed := map[string]string{}
	for line := range strings.Lines(string(listed)) {
		hash, name, found := strings.Cut(strings.TrimSpace(line), "  ")
		require.True(t, found, line)
		reviewed[name] = hash
	}
	files, err := filepath.Glob("terminal/xterm/*")
	require.NoError(t, err)
	require.Len(t, files, len(reviewed))
	for _, file := range files {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		hash := sha256.Sum256(content)
		require.Equal(t, reviewed[strings.TrimPrefix(file, "terminal/")], hex.EncodeToString(hash[:]), file)
	}
}
