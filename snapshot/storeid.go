package snapshot

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"
)

const (
	storeIDFile = "millweir-store-id"
	storeIDHead = "millweir-store-id v1 "
	storeIDSize = len(storeIDHead) + 32 + 1 + 8 + 1
)

// encodeStoreID gives the file's text: head, 32 hex digits, blank, CRC32C of what is before the blank, newline.
func encodeStoreID(id string) string {
	s := storeIDHead + id
	return fmt.Sprintf("%s %08x\n", s, crc32c([]byte(s)))
}

// errEmptyStoreID: the file has its name, and not yet what it says; see Local.claim.
var errEmptyStoreID = formatf("it is empty: a first start goes on, or was cut off; where the directory has no checkpoints, remove the file")

func decodeStoreID(text string) (string, error) {
	if text == "" {
		return "", errEmptyStoreID
	}
	rest, ok := strings.CutPrefix(text, storeIDHead)
	if !ok {
		return "", formatf("it does not begin with %q", storeIDHead)
	}
	id, _, _ := strings.Cut(rest, " ")
	raw, err := hex.DecodeString(id)
	if err != nil || len(raw) != 16 || encodeStoreID(id) != text {
		return "", formatf("damaged; nothing else in the directory can be trusted to belong to it")
	}
	return id, nil
}

// ReadStoreID gives the identity of a checkpoint directory; fs.ErrNotExist when it has none yet.
func ReadStoreID(ctx context.Context, st Storage) (string, error) {
	b, err := readAll(ctx, st, storeIDFile, int64(storeIDSize))
	if errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err != nil {
		return "", readError(ctx, st, "", storeIDFile, KindStoreID, err)
	}
	id, err := decodeStoreID(string(b))
	if err != nil {
		return "", corrupt("", storeIDFile, KindStoreID, err)
	}
	return id, nil
}

// findStoreID reads the identity; fs.ErrNotExist when neither it nor any checkpoint is there. Checkpoints without it
// are damage: under a new identity they would be given up.
func findStoreID(ctx context.Context, st Storage) (string, error) {
	id, err := ReadStoreID(ctx, st)
	if !errors.Is(err, fs.ErrNotExist) {
		return id, err
	}
	files, lerr := st.List(ctx, "")
	if lerr != nil {
		return "", lerr
	}
	if !slices.ContainsFunc(files, func(f FileInfo) bool { return parseFilePath(f.Name).kind != foreignFile }) {
		return "", err
	}
	if id, err = ReadStoreID(ctx, st); errors.Is(err, fs.ErrNotExist) { // it may have come since, with the first files
		err = corrupt("", storeIDFile, KindStoreID, err)
	}
	return id, err
}

// ensureStoreID reads the identity or creates it. Of several that create at once one wins and all read its.
func ensureStoreID(ctx context.Context, st Storage) (string, error) {
	id, err := awaitStoreID(ctx, st, findStoreID)
	if !errors.Is(err, fs.ErrNotExist) || errors.As(err, new(*CorruptError)) {
		return id, err
	}
	var raw [16]byte
	rand.Read(raw[:]) // never fails
	text := encodeStoreID(hex.EncodeToString(raw[:]))
	_, err = st.Put(ctx, storeIDFile, func(w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrExist) {
		// A process that has slept for so long that its file was swept finds what another one has made meanwhile.
		if id, rerr := ReadStoreID(ctx, st); rerr == nil && errors.Is(err, fs.ErrNotExist) {
			return id, nil
		}
		return "", err
	}
	return awaitStoreID(ctx, st, ReadStoreID)
}

// awaitStoreID reads the identity. While it is empty another process may be about to fill it, which takes a moment.
func awaitStoreID(ctx context.Context, st Storage, read func(context.Context, Storage) (string, error)) (id string, err error) {
	for range 10 {
		if id, err = read(ctx, st); !errors.Is(err, errEmptyStoreID) {
			break
		}
		select {
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
	return id, err
}

// readAll reads a whole small object. Its size is checked against limit before anything is allocated.
func readAll(ctx context.Context, st Storage, name string, limit int64) ([]byte, error) {
	o, err := st.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer o.Close()
	size, err := o.Size()
	if err != nil {
		return nil, ioFault(st.Location(), "read "+name, err)
	}
	if size > limit {
		return nil, formatf("%d bytes, at most %d allowed", size, limit)
	}
	b := make([]byte, size)
	n, err := o.ReadAt(b, 0)
	if err != nil && (!errors.Is(err, io.EOF) || n < len(b)) {
		return nil, ioFault(st.Location(), "read "+name, err)
	}
	return b, nil
}
