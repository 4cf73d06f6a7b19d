package cdevent

import (
	"cmp"
	"net/url"
	"strings"

	"lockstep.internal/schemas/gen/events"
)

// artifact returns the package URL of the fact's image. It prefers the changed container, then the container with the
// workload's name, then the last container, because init containers come first.
func artifact(fact events.DeployFact) string {
	image := ""
	if fact.Rollout != nil {
		image = mainImage(*fact.Rollout, fact.Workload.Name)
	}
	if image == "" {
		return "pkg:generic/" + url.PathEscape(fact.Workload.Name)
	}
	return packageURL(image)
}

func mainImage(r events.Rollout, workload string) string {
	before := make(map[string]string, len(r.PreviousImages))
	for _, p := range r.PreviousImages {
		before[p.Container] = p.Image
	}
	var changed, named, last string
	for _, i := range r.Images {
		if old, existed := before[i.Container]; existed && old != i.Image {
			changed = i.Image
		}
		if i.Container == workload {
			named = i.Image
		}
		last = i.Image
	}
	return cmp.Or(changed, named, last)
}

// packageURL returns the package URL of an image reference:
// pkg:oci/<name>@<digest>?repository_url=<repository>&tag=<tag>.
func packageURL(image string) string {
	repository, digest, _ := strings.Cut(image, "@")
	tag := ""
	if colon := strings.LastIndexByte(repository, ':'); colon > strings.LastIndexByte(repository, '/') {
		repository, tag = repository[:colon], repository[colon+1:]
	}
	name := strings.ToLower(repository[strings.LastIndexByte(repository, '/')+1:])
	if name == "" {
		name = "unknown"
	}
	purl := "pkg:oci/" + url.PathEscape(name)
	if digest != "" {
		purl += "@" + strings.ReplaceAll(url.PathEscape(digest), ":", "%3A")
	}
	query := url.Values{}
	if strings.Contains(repository, "/") {
		query.Set("repository_url", repository)
	}
	if tag != "" {
		query.Set("tag", tag)
	}
	if len(query) > 0 {
		purl += "?" + query.Encode()
	}
	return purl
}

// isURI reports whether the schemas of CDEvents accept the address as a URI.
func isURI(address string) bool {
	u, err := url.Parse(address)
	return err == nil && u.Scheme != "" && u.Host != ""
}
