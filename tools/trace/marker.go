package trace

import (
	"regexp"
	"strconv"
	"strings"
	"time"
)

const (
	sectionStart = "section_start:"
	sectionEnd   = "section_end:"
	// maxMarker is the number of bytes up to which a line may become a marker.
	maxMarker = 512
)

var markerPattern = regexp.MustCompile(`^section_(start|end):(\d{1,18}):([A-Za-z0-9._-]+)(?:\[([^\[\]]*)\])?$`)

// marker is the begin or the end of a section.
type marker struct {
	start     bool
	at        time.Time
	name      string
	collapsed bool
}

// parseMarker parses a line up to its carriage return.
func parseMarker(line string) (marker, bool) {
	parts := markerPattern.FindStringSubmatch(line)
	if parts == nil {
		return marker{}, false
	}
	seconds, err := strconv.ParseInt(parts[2], 10, 64)
	if err != nil {
		return marker{}, false
	}
	m := marker{start: parts[1] == "start", at: time.Unix(seconds, 0), name: parts[3]}
	for option := range strings.SplitSeq(parts[4], ",") {
		if strings.TrimSpace(option) == "collapsed=true" {
			m.collapsed = true
		}
	}
	return m, true
}

// mayBeMarker reports whether a line that begins with text may be a marker.
func mayBeMarker(text string) bool {
	if len(text) > maxMarker {
		return false
	}
	for _, prefix := range []string{sectionStart, sectionEnd} {
		if strings.HasPrefix(prefix, text) || strings.HasPrefix(text, prefix) {
			return true
		}
	}
	return false
}
