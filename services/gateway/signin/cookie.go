package signin

import (
	"net/http"
	"strings"
	"time"
)

// Names of cookies. The prefix __Host- makes browsers refuse them from other hosts.
//
// See https://datatracker.ietf.org/doc/html/draft-ietf-httpbis-rfc6265bis#name-cookie-name-prefixes.
const (
	cookiePrefix  = "__Host-lockstep"
	sessionCookie = cookiePrefix
	returnCookie  = cookiePrefix + "-return"
	flowCookie    = cookiePrefix + "-flow-" // and the start of the state, since people open several pages at once
)

// setCookie sets a cookie. A negative age deletes it.
func setCookie(w http.ResponseWriter, name, value string, age time.Duration) {
	http.SetCookie(w, &http.Cookie{
		Name: name, Value: value, Path: "/", MaxAge: int(age.Seconds()), Secure: true, HttpOnly: true,
		SameSite: http.SameSiteLaxMode,
	})
}

func readCookie(r *http.Request, name string) string {
	cookie, err := r.Cookie(name)
	if err != nil {
		return ""
	}
	return cookie.Value
}

// HideCookies removes the gateway's cookies from a request to a workspace.
func HideCookies(header http.Header) {
	var kept []string
	for _, line := range header["Cookie"] {
		for pair := range strings.SplitSeq(line, ";") {
			if pair = strings.TrimSpace(pair); pair != "" && !isOurs(pair) {
				kept = append(kept, pair)
			}
		}
	}
	header.Del("Cookie")
	if len(kept) > 0 {
		header.Set("Cookie", strings.Join(kept, "; "))
	}
}

// FilterSetCookies removes from the answer of a workspace the cookies that would be the gateway's, and the attribute
// Domain from all others: no workspace sets cookies of another.
func FilterSetCookies(header http.Header) {
	lines := header["Set-Cookie"]
	header.Del("Set-Cookie")
	for _, line := range lines {
		if isOurs(line) {
			continue
		}
		parts := strings.Split(line, ";")
		kept := parts[:1]
		for _, attribute := range parts[1:] {
			name, _, _ := strings.Cut(attribute, "=")
			if !strings.EqualFold(strings.TrimSpace(name), "domain") {
				kept = append(kept, attribute)
			}
		}
		header.Add("Set-Cookie", strings.Join(kept, ";"))
	}
}

func isOurs(pair string) bool {
	name, _, _ := strings.Cut(pair, "=")
	return strings.HasPrefix(strings.ToLower(strings.TrimSpace(name)), strings.ToLower(cookiePrefix))
}
