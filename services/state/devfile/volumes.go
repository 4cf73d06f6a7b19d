package devfile

import (
	"path"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"

	"lockstep.internal/services/state/workspace"
)

// volume is a volume component.
type volume struct {
	name, path string
	size       string
	ephemeral  bool
	mounted    bool
	// whole: it is mounted at the folder of the workspace, and so it is the whole volume.
	whole bool
}

// volume reads a volume component.
func (r *reader) volume(name string, v object) *volume {
	read := &volume{name: name, path: v.path, size: v.text("size"), ephemeral: v.boolean("ephemeral", false)}
	v.refuseUnknown()
	if _, err := resource.ParseQuantity(read.size); read.size != "" && err != nil {
		v.addf("size", "%.80q is not a quantity such as 500m, 2 or 1Gi", read.size)
	}
	return read
}

// mounts reads the mounts of a container. A volume that a container mounts at the folder of the workspace is the
// workspace's volume; others are folders of it.
func (r *reader) mounts(
	container object, volumes []*volume, main bool, prefix string, origin map[string]string,
) []workspace.Mount {
	var mounts []workspace.Mount
	seen := map[string]bool{}
	for _, mount := range container.objects("volumeMounts") {
		name, at := mount.literal("name"), mount.text("path")
		if at == "" {
			at = "/" + name
		}
		mount.refuseUnknown()
		i := slices.IndexFunc(volumes, func(v *volume) bool { return v.name == name })
		switch {
		case i < 0:
			mount.addf("name", "%.80q is not a volume component of this devfile", name)
			continue
		case seen[name]:
			mount.addf("name", "%q is mounted already", name)
			continue
		}
		seen[name] = true
		v := volumes[i]
		v.mounted = true
		at = path.Clean(at)
		switch {
		case at != workspace.Folder:
			origin[index(prefix+"mounts", len(mounts))+".path"] = mount.at("path")
			mounts = append(mounts, workspace.Mount{Volume: name, Path: at, Ephemeral: v.ephemeral})
		case !main:
			mount.addf("path", "%s has the sources; mount the volume at another path", workspace.Folder)
		case v.ephemeral:
			r.addf(v.path+".ephemeral", "is not supported at %s: the volume exists as long as the workspace; remove it",
				workspace.Folder)
		default:
			v.whole = true
		}
	}
	return mounts
}

// volumeSize returns the size of the workspace's volume, which has the folders of all volumes that are kept, and the
// field that it comes from. It is empty where the default is enough.
func (r *reader) volumeSize(volumes []*volume) (size, origin string) {
	total := resource.Quantity{}
	var given []*volume
	for _, v := range volumes {
		if parsed, err := resource.ParseQuantity(v.size); err == nil && v.mounted && !v.ephemeral {
			total.Add(parsed)
			given = append(given, v)
		}
	}
	switch {
	case len(given) == 0:
		return "", ""
	case len(given) == 1 && given[0].whole:
		return given[0].size, given[0].path + ".size"
	case !given[0].whole && total.Cmp(resource.MustParse(workspace.DefaultSizes().VolumeSize)) <= 0:
		return "", ""
	default:
		return total.String(), given[0].path + ".size"
	}
}
