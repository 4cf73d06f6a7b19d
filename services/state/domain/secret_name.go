package domain

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// SecretEnvName is the name of the Secret with the workspace's secret variables; its keys are their names.
func (w Workspace) SecretEnvName() string { return w.Name + "-env" }

// SecretFilesName is the name of the Secret with the workspace's secret files; its keys are given by SecretFileKey.
func (w Workspace) SecretFilesName() string { return w.Name + "-files" }

// SecretFileKey is the key of a secret file, by its path, in the Secret of files: a key may have fewer characters than a path, so the path's hash
// keeps two from meeting.
func SecretFileKey(path string) string {
	const readable = 100
	sum := sha256.Sum256([]byte(path))
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_', r == '.':
			return r
		default:
			return '_'
		}
	}, path)
	return hex.EncodeToString(sum[:8]) + "-" + name[max(0, len(name)-readable):]
}
