package figure

import (
	"encoding/csv"
	"fmt"
	"os"
)

// WriteCSV writes a table with its heading into a file (RFC 4180, but lines end with a line feed).
func WriteCSV(path string, heading []string, rows [][]string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	w := csv.NewWriter(file)
	if err := w.WriteAll(append([][]string{heading}, rows...)); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return file.Close()
}
