package rollout

import "strings"

// isValidVersion reports whether a resource version can be ordered: decimal, without leading zeros, at most 40 digits.
func isValidVersion(version string) bool {
	if version == "" || len(version) > 40 || (version[0] == '0' && version != "0") {
		return false
	}
	return strings.Trim(version, "0123456789") == ""
}

// compareVersions orders two resource versions of one resource. The empty version is the lowest.
func compareVersions(a, b string) int {
	if len(a) != len(b) {
		if len(a) < len(b) {
			return -1
		}
		return 1
	}
	return strings.Compare(a, b)
}
