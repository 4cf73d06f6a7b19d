package architecture_test

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/architecture"
)

var (
	code = regexp.MustCompile("(?s)```.*?```|`[^`\n]*`")
	// link is a Markdown link; the target ends before an anchor.
	link = regexp.MustCompile(`\]\(([^)#\s]+)[^)]*\)`)
)

func TestLinksOfDocumentsAreValid(t *testing.T) {
	t.Parallel()
	root, err := architecture.Root()
	require.NoError(t, err)
	files, err := architecture.Files(root)
	require.NoError(t, err)
	links := 0
	for _, file := range files {
		if path.Ext(file) != ".md" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
		require.NoError(t, err)
		for _, found := range link.FindAllStringSubmatch(code.ReplaceAllString(string(text), ""), -1) {
			target := found[1]
			if strings.Contains(target, ":") {
				continue // an address, not a file
			}
			links++
			_, err := os.Stat(filepath.Join(root, filepath.FromSlash(path.Join(path.Dir(file), target))))
			require.NoError(t, err, "%s links to %s", file, target)
		}
	}
	require.Greater(t, links, 50)
}
