package disk

import (
	"crypto/sha256"
	"encoding/hex"
	"path"
	"strings"

	"lockstep.internal/services/runners/objects/object"
)

// Two levels of folders with up to 256 each keep folders small.
const levels = 2

// temporary begins the names of temporary files. No key has such a name.
const temporary = ".put-"

// location returns the folders and the file name of a key, which is valid.
func location(key string) (folders [levels]string, name string) {
	sum := sha256.Sum256([]byte(key))
	digits := hex.EncodeToString(sum[:levels])
	folders[0] = digits[:2]
	folders[1] = path.Join(folders[0], digits[2:])
	return folders, strings.ReplaceAll(key, "/", "~")
}

// keyOf returns the key of a file, and false for files that are not objects.
func keyOf(folder, name string) (string, bool) {
	key := strings.ReplaceAll(name, "~", "/")
	if strings.Contains(name, "/") || object.ValidateKey(key) != nil {
		return "", false
	}
	folders, _ := location(key)
	return key, folders[levels-1] == folder
}
