package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/fieldpath"
	"k8s.io/kubernetes/third_party/forked/golang/expansion"
)

const (
	folderMode = 0o700
	fileMode   = 0o600
	// terminationLog is where processes write why they end, below their root.
	terminationLog = "dev/termination-log"
)

// errMissing wraps what a container needs and does not exist.
var errMissing = errors.New("not found")

// podFolder has the volumes of a pod, and a root folder for each container in which they are mounted.
type podFolder struct {
	client kubernetes.Interface
	pod    *v1.Pod
	path   string
	// claims has the folders of persistent volumes, by name.
	claims string
}

func (f podFolder) root(container string) string { return filepath.Join(f.path, "root", container) }

// write creates the volumes, and writes the files of config maps and secrets again if they have changed.
func (f podFolder) write(ctx context.Context) error {
	for i := range f.pod.Spec.Volumes {
		if err := f.writeVolume(ctx, &f.pod.Spec.Volumes[i]); err != nil {
			return fmt.Errorf("volume %s: %w", f.pod.Spec.Volumes[i].Name, err)
		}
	}
	return nil
}

func (f podFolder) writeVolume(ctx context.Context, v *v1.Volume) error {
	folder := filepath.Join(f.path, "volumes", v.Name)
	switch {
	case v.PersistentVolumeClaim != nil:
		claim, err := f.client.CoreV1().PersistentVolumeClaims(f.pod.Namespace).
			Get(ctx, v.PersistentVolumeClaim.ClaimName, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("claim %s: %w", v.PersistentVolumeClaim.ClaimName, err)
		}
		target := filepath.Join(f.claims, claim.Spec.VolumeName)
		return errors.Join(makeFolder(target), link(target, folder))
	case v.ConfigMap != nil:
		files, err := f.configMap(ctx, v.ConfigMap.Name, v.ConfigMap.Optional)
		if err != nil {
			return err
		}
		return writeFiles(folder, files, v.ConfigMap.Items)
	case v.Secret != nil:
		files, err := f.secret(ctx, v.Secret.SecretName, v.Secret.Optional)
		if err != nil {
			return err
		}
		return writeFiles(folder, files, v.Secret.Items)
	default: // an empty folder; others hold nothing that the agent needs
		return makeFolder(folder)
	}
}

func makeFolder(path string) error {
	if err := os.MkdirAll(path, folderMode); err != nil {
		return fmt.Errorf("create a folder: %w", err)
	}
	return nil
}

// link makes path a symbolic link to target.
func link(target, path string) error {
	if current, err := os.Readlink(path); err == nil && current == target {
		return nil
	}
	if err := makeFolder(filepath.Dir(path)); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("replace a mount: %w", err)
	}
	if err := os.Symlink(target, path); err != nil {
		return fmt.Errorf("mount a volume: %w", err)
	}
	return nil
}

// writeFiles writes all files, or those of items. A file is replaced at once.
func writeFiles(folder string, files map[string][]byte, items []v1.KeyToPath) error {
	if len(items) == 0 {
		for name := range files {
			items = append(items, v1.KeyToPath{Key: name, Path: name})
		}
	}
	if err := makeFolder(folder); err != nil {
		return err
	}
	for _, item := range items {
		content, exists := files[item.Key]
		if !exists {
			return fmt.Errorf("key %s: %w", item.Key, errMissing)
		}
		path := filepath.Join(folder, filepath.Clean("/"+item.Path))
		if current, err := os.ReadFile(path); err == nil && string(current) == string(content) {
			continue
		}
		fresh := path + ".new"
		err := errors.Join(makeFolder(filepath.Dir(path)), os.WriteFile(fresh, content, fileMode))
		if err == nil {
			err = os.Rename(fresh, path)
		}
		if err != nil {
			return fmt.Errorf("write %s: %w", item.Path, err)
		}
	}
	return nil
}

func (f podFolder) configMap(ctx context.Context, name string, optional *bool) (map[string][]byte, error) {
	object, err := f.client.CoreV1().ConfigMaps(f.pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	files := map[string][]byte{}
	if apierrors.IsNotFound(err) && optional != nil && *optional {
		return files, nil
	}
	if err != nil {
		return nil, missing("configmap", name, err)
	}
	for key, text := range object.Data {
		files[key] = []byte(text)
	}
	maps.Copy(files, object.BinaryData)
	return files, nil
}

func (f podFolder) secret(ctx context.Context, name string, optional *bool) (map[string][]byte, error) {
	object, err := f.client.CoreV1().Secrets(f.pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) && optional != nil && *optional {
		return map[string][]byte{}, nil
	}
	if err != nil {
		return nil, missing("secret", name, err)
	}
	return object.Data, nil
}

func missing(kind, name string, err error) error {
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%s %q %w", kind, name, errMissing)
	}
	return fmt.Errorf("get %s %q: %w", kind, name, err)
}

// mount links the volumes of a container into its root folder, outer ones first.
func (f podFolder) mount(c *v1.Container) error {
	root := f.root(c.Name)
	if err := makeFolder(filepath.Join(root, filepath.Dir(terminationLog))); err != nil {
		return err
	}
	mounts := slices.Clone(c.VolumeMounts)
	slices.SortFunc(mounts, func(a, b v1.VolumeMount) int { return strings.Compare(a.MountPath, b.MountPath) })
	for _, m := range mounts {
		source := filepath.Join(f.path, "volumes", m.Name)
		if m.SubPath != "" {
			source = filepath.Join(source, filepath.Clean("/"+m.SubPath))
			if err := makeFolder(source); err != nil {
				return err
			}
		}
		if err := link(source, filepath.Join(root, filepath.Clean("/"+m.MountPath))); err != nil {
			return err
		}
	}
	return nil
}

// environ returns the environment of a container as Kubernetes sets it. Later variables replace earlier ones.
func (f podFolder) environ(ctx context.Context, c *v1.Container, own map[string]string) ([]string, error) {
	env := map[string]string{}
	maps.Copy(env, own)
	for _, from := range c.EnvFrom {
		var files map[string][]byte
		var err error
		switch {
		case from.ConfigMapRef != nil:
			files, err = f.configMap(ctx, from.ConfigMapRef.Name, from.ConfigMapRef.Optional)
		case from.SecretRef != nil:
			files, err = f.secret(ctx, from.SecretRef.Name, from.SecretRef.Optional)
		}
		if err != nil {
			return nil, err
		}
		for name, value := range files {
			env[from.Prefix+name] = string(value)
		}
	}
	expand := expansion.MappingFuncFor(env)
	for i := range c.Env {
		value, set, err := f.value(ctx, &c.Env[i], expand)
		if err != nil {
			return nil, fmt.Errorf("variable %s: %w", c.Env[i].Name, err)
		}
		if set {
			env[c.Env[i].Name] = value
		}
	}
	out := make([]string, 0, len(env))
	for name, value := range env {
		out = append(out, name+"="+value)
	}
	slices.Sort(out)
	return out, nil
}

// value returns the value of a variable. set is false for an optional one that does not exist.
func (f podFolder) value(
	ctx context.Context, v *v1.EnvVar, expand func(string) string,
) (text string, set bool, err error) {
	if v.ValueFrom == nil {
		return expansion.Expand(v.Value, expand), true, nil
	}
	var files map[string][]byte
	var key string
	var optional *bool
	switch from := v.ValueFrom; {
	case from.SecretKeyRef != nil:
		key, optional = from.SecretKeyRef.Key, from.SecretKeyRef.Optional
		files, err = f.secret(ctx, from.SecretKeyRef.Name, optional)
	case from.ConfigMapKeyRef != nil:
		key, optional = from.ConfigMapKeyRef.Key, from.ConfigMapKeyRef.Optional
		files, err = f.configMap(ctx, from.ConfigMapKeyRef.Name, optional)
	case from.FieldRef != nil:
		text, err = fieldpath.ExtractFieldPathAsString(f.pod, from.FieldRef.FieldPath)
		return text, err == nil, err //nolint:wrapcheck // the caller names the variable
	default:
		return "", false, fmt.Errorf("this kind of source %w in a lab", errMissing)
	}
	content, exists := files[key]
	if err == nil && !exists && (optional == nil || !*optional) {
		err = fmt.Errorf("key %s: %w", key, errMissing)
	}
	return string(content), exists, err
}
