//! Unpacks the ELF vmlinux inside a bzImage on the host, so that the guest does not execute the kernel's decompressor in emulation.
//!
//! Source: Linux, Documentation/arch/x86/boot.rst (setup header) and lib/decompress_unlz4.c (legacy frame). The frame is a magic number,
//! then blocks: a little-endian length, then that many bytes of one LZ4 block, which unpacks to at most 8 MiB.

use std::path::Path;

use crate::ImageError;

const SETUP_SECTS: usize = 0x1f1;
const HEADER_MAGIC: usize = 0x202;
const VERSION: usize = 0x206;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;
const LZ4_LEGACY_MAGIC: u32 = 0x184c_2102;
const LZ4_LEGACY_BLOCK: usize = 8 << 20;

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    let four = bytes.get(offset..offset.checked_add(4)?)?;
    Some(u32::from_le_bytes(four.try_into().ok()?))
}

/// Unpacks the vmlinux (an ELF file) from the bytes of a bzImage. Errors name the file `path`.
///
/// # Errors
///
/// [`ImageError::Kernel`] if the file is no bzImage, is cut short or damaged, or is packed with anything but legacy LZ4.
pub fn unpack_bzimage(path: &Path, image: &[u8]) -> Result<Vec<u8>, ImageError> {
    let fail = |problem: String| ImageError::Kernel {
        path: path.to_path_buf(),
        problem,
    };
    let cut = |need: usize| {
        fail(format!(
            "cut short: {} bytes, at least {need} expected; install the kernel package again",
            image.len()
        ))
    };
    if image.len() < PAYLOAD_LENGTH + 4 {
        return Err(cut(PAYLOAD_LENGTH + 4));
    }
    if &image[HEADER_MAGIC..HEADER_MAGIC + 4] != b"HdrS" {
        return Err(fail(format!(
            "not a bzImage: no `HdrS` at offset {HEADER_MAGIC:#x}"
        )));
    }
    let version = u16::from_le_bytes([image[VERSION], image[VERSION + 1]]);
    if version < 0x208 {
        return Err(fail(format!(
            "boot protocol {}.{:02} has no payload fields; 2.08 or later is needed",
            version >> 8,
            version & 0xff
        )));
    }
    // A field of 0 means 4 sectors (boot.rst, setup_sects).
    let sectors = match image[SETUP_SECTS] {
        0 => 4,
        n => usize::from(n),
    };
    let field = |offset| u32_at(image, offset).unwrap_or(0) as usize;
    let start = (sectors + 1) * 512 + field(PAYLOAD_OFFSET);
    let end = start + field(PAYLOAD_LENGTH);
    let payload = image.get(start..end).ok_or_else(|| cut(end))?;
    // The kernel's build appends the unpacked size to the packed stream.
    let Some((packed, size)) = payload.split_last_chunk::<4>() else {
        return Err(fail("empty payload".into()));
    };
    let size = u32::from_le_bytes(*size) as usize;
    if u32_at(packed, 0) != Some(LZ4_LEGACY_MAGIC) {
        let kind = match packed {
            [0x1f, 0x8b, ..] => "gzip",
            [0xfd, b'7', b'z', ..] => "xz",
            [0x28, 0xb5, 0x2f, 0xfd, ..] => "zstd",
            [0x89, b'L', b'Z', b'O', ..] => "lzo",
            [b'B', b'Z', b'h', ..] => "bzip2",
            _ => "an unknown format",
        };
        return Err(fail(format!(
            "payload at offset {start:#x} is packed with {kind}; only legacy LZ4 is known"
        )));
    }
    let elf = unpack_legacy_lz4(packed)
        .map_err(|problem| fail(format!("payload at offset {start:#x}: {problem}")))?;
    if elf.len() != size {
        return Err(fail(format!(
            "payload unpacks to {} bytes, {size} recorded",
            elf.len()
        )));
    }
    if !elf.starts_with(b"\x7fELF") {
        return Err(fail("payload is not an ELF file".into()));
    }
    Ok(elf)
}

/// Unpacks a legacy-format LZ4 stream.
///
/// # Errors
///
/// A sentence with the offset within `packed` at which the stream is damaged.
pub fn unpack_legacy_lz4(packed: &[u8]) -> Result<Vec<u8>, String> {
    if u32_at(packed, 0) != Some(LZ4_LEGACY_MAGIC) {
        return Err("no legacy LZ4 magic number at offset 0x0".into());
    }
    let mut out = Vec::new();
    let mut block = vec![0; LZ4_LEGACY_BLOCK];
    let mut offset = 4;
    while offset < packed.len() {
        let length = u32_at(packed, offset)
            .ok_or_else(|| format!("LZ4 block length cut short at offset {offset:#x}"))?;
        // Streams may be joined, each with its own magic number.
        if length == LZ4_LEGACY_MAGIC {
            offset += 4;
            continue;
        }
        let data = packed.get(offset + 4..offset + 4 + length as usize).ok_or_else(|| {
            format!("LZ4 block of {length} bytes at offset {offset:#x} runs past the end ({} bytes)", packed.len())
        })?;
        let n = lz4_flex::block::decompress_into(data, &mut block)
            .map_err(|error| format!("damaged LZ4 block at offset {offset:#x}: {error}"))?;
        out.extend_from_slice(&block[..n]);
        offset += 4 + length as usize;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn legacy(blocks: &[&[u8]]) -> Vec<u8> {
        let mut stream = LZ4_LEGACY_MAGIC.to_le_bytes().to_vec();
        for block in blocks {
            let packed = lz4_flex::block::compress(block);
            stream.extend((packed.len() as u32).to_le_bytes());
            stream.extend(packed);
        }
        stream
    }

    /// Returns a bzImage of one setup sector whose payload lies `0x10` into the protected-mode part.
    fn bzimage(payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0u8; 1024 + 0x10];
        image[SETUP_SECTS] = 1;
        image[HEADER_MAGIC..HEADER_MAGIC + 4].copy_from_slice(b"HdrS");
        image[VERSION..VERSION + 2].copy_from_slice(&0x20fu16.to_le_bytes());
        image[PAYLOAD_OFFSET..PAYLOAD_OFFSET + 4].copy_from_slice(&0x10u32.to_le_bytes());
        image[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4]
            .copy_from_slice(&(payload.len() as u32).to_le_bytes());
        image.extend_from_slice(payload);
        image
    }

    fn message(image: &[u8]) -> String {
        unpack_bzimage(Path::new("vmlinuz"), image)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn unpacks_all_blocks_of_a_kernel() {
        let elf = [b"\x7fELF".to_vec(), vec![7; 100_000]].concat();
        let mut payload = legacy(&[&elf[..60_000], &elf[60_000..]]);
        payload.extend((elf.len() as u32).to_le_bytes());
        assert_eq!(
            unpack_bzimage(Path::new("vmlinuz"), &bzimage(&payload)).unwrap(),
            elf
        );
    }

    #[test]
    fn refuses_a_truncated_image_and_says_how_much_is_missing() {
        let elf = [b"\x7fELF".to_vec(), vec![7; 1000]].concat();
        let mut payload = legacy(&[&elf]);
        payload.extend((elf.len() as u32).to_le_bytes());
        let image = bzimage(&payload);
        assert_eq!(
            message(&image[..image.len() - 1]),
            format!(
                "kernel image vmlinuz: cut short: {} bytes, at least {} expected; install the kernel package again",
                image.len() - 1,
                image.len()
            )
        );
        assert_eq!(
            message(&image[..100]),
            "kernel image vmlinuz: cut short: 100 bytes, at least 592 expected; install the kernel package again"
        );
    }

    #[test]
    fn refuses_what_is_not_a_kernel() {
        assert_eq!(
            message(&[0; 4096]),
            "kernel image vmlinuz: not a bzImage: no `HdrS` at offset 0x202"
        );
        assert_eq!(
            message(&bzimage(&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0])),
            "kernel image vmlinuz: payload at offset 0x410 is packed with gzip; only legacy LZ4 is known"
        );
    }

    #[test]
    fn refuses_a_payload_of_the_wrong_size() {
        let elf = [b"\x7fELF".to_vec(), vec![7; 1000]].concat();
        let mut payload = legacy(&[&elf]);
        payload.extend(1003u32.to_le_bytes());
        assert_eq!(
            message(&bzimage(&payload)),
            "kernel image vmlinuz: payload unpacks to 1004 bytes, 1003 recorded"
        );
    }

    #[test]
    fn names_the_offset_of_a_damaged_block() {
        let good = legacy(&[&[1; 5000], &[2; 5000]]);
        let first = u32_at(&good, 4).unwrap() as usize;
        let second = 8 + first;
        let mut cut = good.clone();
        cut.truncate(good.len() - 1);
        let error = unpack_legacy_lz4(&cut).unwrap_err();
        assert!(
            error.contains(&format!("at offset {second:#x} runs past the end")),
            "{error}"
        );
        // An offset of 0 in a match is never valid.
        let damaged = [
            &LZ4_LEGACY_MAGIC.to_le_bytes()[..],
            &4u32.to_le_bytes(),
            &[0x10, b'a', 0, 0],
        ]
        .concat();
        let error = unpack_legacy_lz4(&damaged).unwrap_err();
        assert!(
            error.starts_with("damaged LZ4 block at offset 0x4: "),
            "{error}"
        );
    }
}
